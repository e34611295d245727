"""The state folder: where things lie, and a cluster's record in it."""

import dataclasses
import json
import os
import threading
import uuid
from pathlib import Path

import pytest

from cluster.errors import ClusterError
from cluster.processes import ProcessId
from cluster.record import (
    Cluster,
    Host,
    cluster_folder,
    cluster_names,
    home,
    running_clusters,
    short_folder,
    write_json,
)
from cluster.spec import ClusterSpec, LocalProviderSpec

pytestmark = pytest.mark.usefixtures("state_folder")


def _cluster(name: str = "laptop") -> Cluster:
    spec = ClusterSpec(name=name, provider=LocalProviderSpec(), num_hosts=2, devices_per_host=2, env={"A": "b"})
    cluster_id = uuid.uuid4().hex
    hosts = tuple(
        Host(index=index, name=f"{name}-{index}", node_id="f" * 56, address="127.0.0.1", folder=f"/h/{index}")
        for index in range(2)
    )
    return Cluster(
        spec=spec, cluster_id=cluster_id, holder=ProcessId.current(), gcs_address="127.0.0.1:6379",
        run_folder=short_folder(cluster_id), hosts=hosts, created="2026-11-21T04:00:00+00:00",
    )  # fmt: skip


def _save(cluster: Cluster) -> None:
    cluster.folder.mkdir(parents=True)
    cluster.save()


def test_the_state_folder_is_the_variable_or_in_home(state_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home() == state_folder
    monkeypatch.setenv("HOME", str(state_folder))
    monkeypatch.setenv("SPMD_LAUNCH_HOME", "~/x")
    assert home() == state_folder / "x"
    for value in ("", None):
        monkeypatch.setenv("SPMD_LAUNCH_HOME", value) if value is not None else monkeypatch.delenv("SPMD_LAUNCH_HOME")
        assert home() == state_folder / ".spmd-launch"


def test_a_record_is_read_as_it_was_written() -> None:
    cluster = _cluster()
    _save(cluster)
    assert Cluster.load("laptop") == cluster
    assert json.loads((cluster.folder / "cluster.json").read_text())["format"] == 1


@pytest.mark.parametrize(
    "change", [{"spec": {"name": "laptop", "colour": "red"}}, {"holder": {}}, {"hosts": [{"rack": 3}]}], ids=list
)
def test_a_record_of_another_version_is_told_as_such(change: dict[str, object]) -> None:
    cluster = _cluster()
    _save(cluster)
    path = cluster.folder / "cluster.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ClusterError, match=r"'laptop' was brought up by another version .* `spmd-launch down laptop"):
        Cluster.load("laptop")


def test_a_cluster_without_a_record_is_known_but_not_loaded() -> None:
    assert cluster_names() == [] and running_clusters() == []
    cluster_folder("half-built").mkdir(parents=True)
    (cluster_folder("half-built").parent / "a-file").touch()
    assert cluster_names() == ["half-built"]
    assert Cluster.load("half-built") is None and Cluster.load("never-heard-of") is None
    assert running_clusters() == []


def test_a_cluster_runs_as_long_as_its_holder() -> None:
    alive = _cluster("alive")
    rebooted = dataclasses.replace(_cluster("rebooted"), holder=ProcessId(os.getpid(), alive.holder.started - 1))
    _save(alive)
    _save(rebooted)
    assert running_clusters() == [alive]
    assert cluster_names() == ["alive", "rebooted"]


def test_sockets_have_short_paths_of_their_own() -> None:
    first, second = _cluster(), _cluster()
    assert first.run_folder != second.run_folder
    longest = f"{first.run_folder}/ray/session_2026-11-21_04-00-00_000000_4194304/sockets/plasma_store.63"
    assert len(longest.encode()) <= 107 and len(str(first.socket).encode()) <= 107


def test_json_is_never_seen_half_written(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    values = [{"number": number, "padding": "x" * 100_000} for number in range(2)]
    write_json(path, values[0])
    done = threading.Event()

    def write() -> None:
        for number in range(60):
            write_json(path, values[number % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not done.is_set() or not reads:
        assert json.loads(path.read_text()) in values
        reads += 1
    writer.join()
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_a_value_that_json_cannot_hold_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": object()})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
