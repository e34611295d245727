"""What a look at machines finds, and what is made of it: the script is run here as it is on a host."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.host_facts import MIN_FREE_BYTES, MachineFacts, problems, warnings
from cluster.processes import MARKER
from cluster.remote_machine import SENT_SOURCES


def look(folder: Path, name: str = "lab", marker: str = MARKER) -> dict[str, Any]:
    script = (SENT_SOURCES / "host_check.py").read_text()
    command = [sys.executable, "-", name, "h1", sys.executable, marker]
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "SSH_CONNECTION": "10.0.0.9 1 10.0.0.1 22"}
    done = subprocess.run(command, input=script, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def facts(host: str = "h1", **changes: Any) -> MachineFacts:
    """A machine that is as it should be, but for `changes`."""
    good: dict[str, Any] = dict(
        host=host, home=f"/root/.spmd-launch/hosts/{host}", address=f"10.0.0.{host[1:]}", hostname=host,
        resolves_to=(f"10.0.0.{host[1:]}",), clock_skew_s=0.1, free_bytes=MIN_FREE_BYTES, free_shm_bytes=2**30,
        writable="", machine="x86_64", system="Linux", uv="", environments={}, cluster=None, others=(), processes=(),
        container=None, python={"version": "3.11.7", "packages": {"ray": "2.60.0", "jax": "0.10.2", "jaxlib": "0.10.2",
                                                  "numpy": "2.4.0", "psutil": "7"}},
    )  # fmt: skip
    return MachineFacts(**{**good, **changes})


def test_a_look_leaves_nothing(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert found["writable"] == "" and found["home"] == str(tmp_path / ".spmd-launch/hosts/h1")
    assert not list(tmp_path.iterdir())
    kept = tmp_path / ".spmd-launch/hosts/h1/jobs"
    kept.mkdir(parents=True)
    assert look(tmp_path)["writable"] == "" and kept.is_dir() and not list(kept.parent.glob(".*"))


def test_a_look_finds_processes_that_nobody_holds(tmp_path: Path) -> None:
    marker = "SPMD_LAUNCH_TEST_OF_LOOKS"
    held = [sys.executable, "-c", "import time; time.sleep(60)", "-m", "cluster.holder"]
    commands = {"alone": [["sleep", "61"]], "held": [["sleep", "62"], held]}
    started = [
        subprocess.Popen(command, env={marker: cluster_id})
        for cluster_id, ours in commands.items()
        for command in ours
    ]  # fmt: skip
    try:
        time.sleep(0.2)  # until they have become their commands
        (found,) = look(tmp_path, marker=marker)["processes"]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert (found["pid"], found["cluster_id"], found["command"]) == (started[0].pid, "alone", "sleep 61")
    assert 0 <= found["age_s"] < 60


def test_a_look_finds_other_clusters_that_use_our_folder(tmp_path: Path) -> None:
    clusters = tmp_path / ".spmd-launch/hosts/h1/clusters"
    start = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    holders = {"lab": os.getpid(), "up": os.getpid(), "dead": 0, "begun": None}
    for name, pid in holders.items():
        (clusters / name).mkdir(parents=True)
        if pid is not None:
            (clusters / name / "holder.json").write_text(json.dumps({"pid": pid, "started": float(start)}))
    assert look(tmp_path)["others"] == ["begun", "up"]


def test_good_machines() -> None:
    assert problems([facts("h1"), facts("h2")]) == [] and warnings(facts()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"free_bytes": 2**30}, ["h2: 1073741824 bytes (1.0 GiB) are free at /root/.spmd-launch/hosts/h2"]),
        ({"free_bytes": 0, "writable": "No space left"}, ["h2: 0 bytes (0.0 GiB) are free"]),
        ({"writable": "Read-only file system"}, ["h2: /root/.spmd-launch/hosts/h2 cannot be written: Read-only"]),
        ({"python": {"error": "No such file: '/opt/python'"}}, ["h2: its Python does not run", "/opt/python"]),
        ({"python": {"version": "3.12.1", "packages": {}}}, ["h2: has Python 3.12.1, expected 3.11.7, as h1 has"]),
        (
            {"python": {"version": "3.11.7", "packages": {"jax": "0.12.0", "ray": ""}}},
            ["h2: has jax 0.12.0, expected 0.10.2, as h1 has", "h2: its Python has no ray"],
        ),
        ({"address": "10.0.0.1"}, ["h2 and h1 are one machine: both have address 10.0.0.1"]),
    ],
)
def test_a_machine_that_cannot_be_a_host(changes: dict[str, Any], words: list[str]) -> None:
    said = "\n".join(problems([facts("h1"), facts("h2", **changes)]))
    assert all(word in said for word in words), said


def test_processes_left_by_a_crash() -> None:
    left = {"pid": 77, "age_s": 12.4, "cluster_id": "old", "command": "sleep 9"}
    (own,) = warnings(facts(processes=(left,), cluster={"record": None, "cluster_id": "old", "holder_lives": False}))
    assert own == "h1: pid 77 (sleep 9), 12 s old, is left of an earlier cluster of this name: it is ended"
    (other,) = warnings(facts(processes=(left,)))
    assert "a cluster of ours that nobody holds any more" in other and "`kill 77` on h1" in other
