"""`down --purge` does what it says, or is refused before anything is taken down."""

from pathlib import Path

import pytest

from cluster.farewell import Farewell
from cluster.ray_host import remove
from cluster.record import cluster_folder, save_spec
from cluster.spec import ClusterSpec, LocalProviderSpec
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("state_folder")


@pytest.mark.parametrize("more", [(), ("--force",), ("--dry-run",)], ids=" ".join)
def test_of_emulated_hosts_it_is_refused_and_all_stays(state_folder: Path, more: tuple[str, ...]) -> None:
    save_spec(ClusterSpec(name="near", provider=LocalProviderSpec(), num_hosts=1, devices_per_host=1))
    saved = state_folder / "saved" / "near-0"
    saved.mkdir(parents=True)
    out = Cli(state_folder)("down", "near", "--purge", *more, code=2)
    assert out.startswith("error: --purge is for hosts over ssh") and str(state_folder / "saved") in out
    assert (cluster_folder("near") / "spec.json").exists() and saved.exists()
    assert "what scripts have saved stay" in Cli(state_folder)("down", "near")
    assert saved.exists() and not cluster_folder("near").exists()


def test_of_a_cluster_that_took_itself_down_and_whose_hosts_nobody_knows_it_is_refused(state_folder: Path) -> None:
    state_folder.mkdir()
    ended = "2026-11-22T08:25:08+00:00"
    Farewell(name="lab", cluster_id="c1", ended=ended, why="after 5s without a job", jobs={}).save()
    out = Cli(state_folder)("down", "lab", "--purge", code=2)
    assert "took itself down" in out and "its hosts are not known here any more" in out
    assert Farewell.load("lab") is not None


@pytest.mark.parametrize("other_is_there", [True, False], ids=["another cluster is there", "alone"])
def test_a_node_of_somebodys_ray_keeps_our_folder_where_another_cluster_has_one_in_it(
    tmp_path: Path, other_is_there: bool
) -> None:
    ours = tmp_path / ".spmd-launch" / "hosts" / "n1"
    folder = ours / "clusters" / "lab"
    (folder / "code").mkdir(parents=True)
    (ours / "saved" / "n1").mkdir(parents=True)
    if other_is_there:
        (ours / "clusters" / "other").mkdir()
    lines = remove(str(folder), "no-process-carries-this", [], str(ours))
    assert not folder.exists()
    assert (ours / "saved").exists() == other_is_there == (tmp_path / ".spmd-launch").exists()
    assert lines == ([f"all of {ours} stays: other has a folder in it, and may be up"] if other_is_there else [])
