"""What ends a paid cluster at its limits when its holder has died: real processes, and clouds that refuse or obey."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.processes import ProcessId
from cluster.record import Cluster
from launcher import last_guard
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.limits import Clock, Reason
from tests.cluster.test_record import _cluster, _save
from tests.conftest import ROOT, job_spec

pytestmark = pytest.mark.usefixtures("state_folder")

WHY = "after 5s without a job; its Ray had died on the head"


@pytest.fixture
def holder(children: list[subprocess.Popen[Any]]) -> subprocess.Popen[Any]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    children.append(process)
    return process


@pytest.fixture
def guarded(holder: subprocess.Popen[Any], tmp_path: Path) -> Cluster:
    """One that was without a job for long when its supervisor last looked."""
    plain, identity = _cluster(), ProcessId.of(holder.pid)
    assert identity is not None
    spec = dataclasses.replace(plain.spec, idle_down_after="5s", storage_path=str(tmp_path / "storage"))
    cluster = dataclasses.replace(plain, spec=spec, holder=identity)
    _save(cluster)
    since = time.monotonic() - 100
    clock = Clock(up_since=since, idle_since=since, warned={Reason.IDLE: since})
    (cluster.folder / last_guard.CLOCK).write_text(json.dumps(dataclasses.asdict(clock)))
    return cluster


def test_it_deletes_only_when_the_holder_has_died_and_until_the_cloud_obeys(
    guarded: Cluster, holder: subprocess.Popen[Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(last_guard, "PERIOD_S", 0.01)
    monkeypatch.setattr(last_guard, "PAUSES_S", (0.01,))
    answers, looks = ["permission denied", "permission denied", ""], 0
    sleep = time.sleep

    def kill_at_last(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 5:
            assert len(answers) == 3, "while the holder lives the supervisor counts"
            holder.kill()
            holder.wait()
        sleep(seconds)

    monkeypatch.setattr(last_guard.time, "sleep", kill_at_last)
    assert last_guard.end_when_over(guarded, lambda: answers.pop(0)) == WHY
    assert looks >= 5 and not answers and capfd.readouterr().out.count("permission denied") == 2


def test_what_was_removed_or_brought_up_anew_is_none_of_its_business(
    guarded: Cluster, holder: subprocess.Popen[Any]
) -> None:
    def delete() -> str:
        raise AssertionError("this would be another cluster's machines")

    holder.kill()
    holder.wait()
    dataclasses.replace(guarded, cluster_id="0" * 32).save()
    assert last_guard.end_when_over(guarded, delete) == ""
    (guarded.folder / "cluster.json").unlink()
    assert last_guard.end_when_over(guarded, delete) == ""


def test_it_is_one_process_that_is_there_when_the_cluster_has_died_and_leaves_last_words(
    guarded: Cluster, holder: subprocess.Popen[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = JobFolder.create(job_spec("j"), guarded.name)
    folder.write_job(folder.job() | {"state": JobState.RUNNING})
    for _ in range(2):  # as two supervisors, one after the other
        last_guard.begin(guarded.name)

    def guards() -> list[psutil.Process]:
        words, found = [sys.executable, "-m", "launcher.last_guard", guarded.name], []
        for process in psutil.process_iter(["cmdline", "environ"]):
            mine = (process.info["environ"] or {}).get("SPMD_LAUNCH_HOME") == os.environ["SPMD_LAUNCH_HOME"]
            found += [process] if mine and process.info["cmdline"] == words else []
        return found

    deadline = time.monotonic() + 120
    while len(guards()) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (guard,) = guards()
    assert guard.ppid() != os.getpid() and os.getsid(guard.pid) != os.getsid(0)
    holder.kill()
    holder.wait()
    psutil.wait_procs([guard], timeout=120)
    assert not guards()
    assert f"deleted, {WHY}" in (guarded.folder / last_guard.LOG).read_text()
    said = json.loads((tmp_path / "storage/ended" / f"{guarded.cluster_id}.json").read_text())
    assert said["why"] == WHY and said["jobs"]["j"]["state"] == "FAILED"
