"""What a script saves on its hosts' own disks stays until `down --purge`, which takes nothing from another cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.hosts.conftest import Lab

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(400)]

# The end of one that fails ends the other: each waits for what the other has saved, which here only JAX can tell.
SAVES = """
import os, pathlib
import jax
from jax.experimental import multihost_utils

jax.distributed.initialize()
saved = pathlib.Path(os.environ["SPMD_LAUNCH_STORAGE_PATH"], "step.txt")
step = int(saved.read_text()) if saved.exists() else 0
print(f"starts from {step}", flush=True)
saved.write_text(str(step + 1))
multihost_utils.sync_global_devices("both have saved")
"""
OURS = "/root/.spmd-launch"


@pytest.fixture
def pair(empty_lab: Lab) -> Iterator[Lab]:
    """A cluster of two hosts that is up."""
    empty_lab.hosts.write_lab(empty_lab.file, names=("h1", "h2"))
    empty_lab.cli("up", str(empty_lab.file))
    yield empty_lab
    for name in ("other", empty_lab.name):
        if (empty_lab.cli.home / "clusters" / name).exists():
            empty_lab.cli("down", name, "--force")
    assert not empty_lab.processes()
    empty_lab.purge()


@pytest.mark.long  # two minutes; `tests/cluster/test_remote_machine.py` has what a purge decides
def test_saves_outlive_a_host_and_its_cluster_and_go_with_purge(pair: Lab, tmp_path: Path) -> None:
    cli, h2 = pair.cli, pair.hosts["h2"]
    (tmp_path / "saves.py").write_text(SAVES)
    user = Cli(cli.home, tmp_path)
    user.environment = cli.environment
    user("run", "--name", "saves", "--", "python", "saves.py")
    h2.kill()
    h2.boot()
    cli.wait_for(lambda: "LOST" in cli("status", pair.name), 60)
    assert f"host {h2.address} is back" in cli("up", str(pair.file))
    out = user("submit", "--resume", "saves")
    assert "[0] starts from 1" in out and "[1] starts from 1" in out

    cli("down", pair.name)
    h2.run(["rm", "-rf", f"{OURS}/hosts/{h2.address}/saved"])
    other = pair.file.with_name("other.yaml")
    pair.hosts.write_lab(other, names=("h2",))
    other.write_text(other.read_text().replace("name: lab", "name: other").replace("min_hosts: 2", "min_hosts: 1"))
    cli("up", str(pair.file))
    cli("up", str(other))
    out = user("submit", "--resume", "saves", "--cluster", pair.name)
    assert "[0] starts from 2" in out and "[1] starts from 0" in out
    assert f"{h2.address} (rank 1) has no saves of the script, and {pair.hosts['h1'].address} (rank 0) has" in (
        " ".join(cli.json("status", "saves")["notes"])
    )

    taken = f"error: --purge would take from other clusters what they use: on {h2.address}, cluster other uses {OURS}/"
    for more in (["--dry-run"], ["--force"]):
        assert cli("down", pair.name, "--purge", *more, code=2).startswith(taken)
    assert "WARM" in cli("status", pair.name)
    cli("down", "other")
    assert "all of ours goes from its hosts" in " ".join(cli("down", pair.name, "--purge", "--dry-run").split())
    assert "nothing of ours is on its hosts" in cli("down", pair.name, "--purge")
    assert not [name for name in ("h1", "h2") if pair.hosts[name].path(OURS).exists()]
    assert not pair.folders() and not pair.processes()
