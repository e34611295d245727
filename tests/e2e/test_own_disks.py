"""A cluster without a shared storage: hosts lose their disks, the head's is full, an agent dies in its copy."""

import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Cli, assert_nothing_left, cluster_file, command_of, processes_of, set_words

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SETTINGS = ("steps=20", "mesh=2x2", "num_layers=1", "width=32", "ff_width=64", "context_length=16", "sample_length=0")
JOB = ("transformer", *set_words(SETTINGS), "--checkpoint-every", "5")

SAVES = """
import os, pathlib, sys, time
saved, mine = pathlib.Path(os.environ["SPMD_LAUNCH_STORAGE_PATH"], "step.txt"), os.environ["SPMD_LAUNCH_RANK"]
attempt = os.environ["SPMD_LAUNCH_ATTEMPT"]
step = int(saved.read_text()) if saved.exists() else 0
print(f"starts from {step}", flush=True)
saved.write_text(str(step + 1))
both = pathlib.Path(sys.argv[1])
(both / f"{mine}-{attempt}").touch()
while not all((both / f"{rank}-{attempt}").exists() for rank in "01"):  # the end of one that fails ends the other
    time.sleep(0.01)
raise SystemExit(step == 0)
"""


@pytest.fixture(scope="module")
def apart(cli: Cli) -> Iterator[str]:
    """Two hosts that share no storage."""
    name = "apart"
    path = cluster_file(cli.home, name)
    path.write_text(path.read_text().replace(f"{cli.home}/storage", "none"))
    cli("up", str(path))
    record = cli.record(name)
    yield name
    cli("down", name, "--force")
    assert_nothing_left(record, cli.home)


@pytest.fixture(scope="module")
def calm(cli: Cli, apart: str) -> dict[str, Any]:
    cli("submit", *JOB, "--name", "calm-apart", "--cluster", apart)
    result: dict[str, Any] = cli.json("results", "calm-apart")
    return result


def events(cli: Cli, job: str, kind: str) -> list[dict[str, Any]]:
    path = cli.home / "jobs" / job / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["type"] == kind]


def disk(cli: Cli, cluster: str, host: int) -> Path:
    return cli.home / "clusters" / cluster / "hosts" / f"{cluster}-{host}" / "storage"


def keeper(cli: Cli, cluster: str) -> psutil.Process:
    (found,) = [
        process for process in processes_of(cli.record(cluster)) if "KeeperActor" in " ".join(command_of(process))
    ]
    return found


def assert_as_calm(cli: Cli, job: str, calm: dict[str, Any], attempts: int) -> None:
    record = cli.job(job)
    assert (record["state"], record["attempt"]) == ("SUCCEEDED", attempts)
    assert record["result"]["result_digest"] == calm["result_digest"]


def test_hosts_that_have_lost_their_disks_go_on_from_the_head(cli: Cli, apart: str, calm: dict[str, Any]) -> None:
    job = "lost-disks"
    pause = ("--inject", "sleep rank=1 step=16 seconds=8", "--inject", "kill rank=1 step=16")
    process = cli.start("submit", *JOB, "--name", job, "--cluster", apart, *pause)
    cli.wait_for(lambda: [event for event in events(cli, job, "checkpoint") if event["step"] == 15], 120.0)
    (first,), (second,) = (list(disk(cli, apart, host).glob(f"{job}.*/step_00000015*")) for host in (0, 1))
    assert not {path.relative_to(first) for path in first.rglob("*") if path.is_file()} & {
        path.relative_to(second) for path in second.rglob("*") if path.is_file()
    }
    for host in (0, 1):
        shutil.rmtree(disk(cli, apart, host))
    out, _ = process.communicate(timeout=240)
    assert "attempt 2 restarts from step 15" in out
    assert "rank 0 on host apart-0 fetched" in out and "rank 1 on host apart-1 fetched" in out
    assert_as_calm(cli, job, calm, attempts=2)
    (resumed,) = events(cli, job, "resumed")
    assert resumed["step"] == 15
    copied = sum(event["copied_bytes"] for event in events(cli, job, "checkpoint"))
    assert copied > 0 and "copied to the head in 4 save(s)" in cli("results", job)
    storage = Path(cli.job(job)["storage"])
    assert storage.parent == cli.home / "storage"
    assert sorted(path.name[:13] for path in storage.glob("step_*")) == [
        "step_00000010", "step_00000015", "step_00000020"
    ]  # fmt: skip
    assert all(Path(event["path"]).parent == storage for event in events(cli, job, "checkpoint"))
    cli.wait_for(lambda: not any(list(disk(cli, apart, host).glob(f"{job}.*")) for host in (0, 1)))


@pytest.mark.long
def test_a_full_disk_on_the_head_costs_checkpoints_not_the_work(cli: Cli, apart: str, calm: dict[str, Any]) -> None:
    process = keeper(cli, apart)
    limits = process.rlimit(resource.RLIMIT_FSIZE)
    process.rlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        cli("submit", *JOB, "--name", "head-full", "--cluster", apart)
    finally:
        process.rlimit(resource.RLIMIT_FSIZE, limits)
    failed = events(cli, "head-full", "checkpoint-failed")
    assert [(event["step"], event["last_good"]) for event in failed] == [(step, None) for step in (5, 10, 15, 20)]
    assert all("File too large" in event["why"] for event in failed)
    assert not list(Path(cli.job("head-full")["storage"]).glob("step_*"))
    assert_as_calm(cli, "head-full", calm, attempts=1)


@pytest.mark.long
def test_an_agent_that_dies_in_its_copy_leaves_the_step_before(cli: Cli, apart: str, calm: dict[str, Any]) -> None:
    job = "agent-died"
    process = cli.start("submit", *JOB, "--name", job, "--cluster", apart, "--inject", "sleep rank=1 step=5 seconds=4")
    cli.wait_for(lambda: [event for event in events(cli, job, "checkpoint") if event["step"] == 5], 120.0)
    storage = Path(cli.job(job)["storage"])
    (record,) = (disk(cli, apart, 1).parent / "ranks").glob("*.json")
    agent = json.loads(record.read_text())["agent"]["pid"]
    head = keeper(cli, apart)
    cli.wait_for(lambda: list(storage.glob("step_00000010*")))  # step 10 has begun: from here on nothing arrives
    head.send_signal(signal.SIGSTOP)
    try:
        committed = list(storage.glob("step_00000010*/manifest.json"))
        os.kill(agent, signal.SIGKILL)
        cli.wait_for(lambda: events(cli, job, "attempt-failed"))
    finally:
        head.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=240)
    assert not committed, "the keeper was stopped too late for this test to tell anything"
    assert "rank 1 on host apart-1 was lost" in out and "attempt 2 restarts from step 5" in out
    assert_as_calm(cli, job, calm, attempts=2)
    assert all((path / "manifest.json").exists() for path in storage.glob("step_*"))


@pytest.mark.long
def test_a_keeper_that_dies_is_started_again(cli: Cli, apart: str, calm: dict[str, Any]) -> None:
    job, old = "keeper-died", keeper(cli, apart)
    process = cli.start("submit", *JOB, "--name", job, "--cluster", apart, "--inject", "sleep rank=1 step=5 seconds=2")
    cli.wait_for(lambda: [event for event in events(cli, job, "checkpoint") if event["step"] == 5], 120.0)
    old.kill()
    out, _ = process.communicate(timeout=240)
    assert_as_calm(cli, job, calm, attempts=1)
    assert [event["step"] for event in events(cli, job, "checkpoint")] == [5, 10, 15, 20], out
    assert keeper(cli, apart).pid != old.pid


def test_a_job_that_ended_is_resumed_from_the_head(cli: Cli, apart: str, calm: dict[str, Any]) -> None:
    # Nearly as long as a rank may stand: meanwhile step 15 comes to the head.
    fault = ("--inject", "sleep rank=0 step=16 seconds=8", "--inject", "raise rank=0 step=16")
    cli("submit", *JOB, "--name", "resumed", "--cluster", apart, "--max-failures", "0", *fault, code=1)
    shutil.rmtree(cli.home / "jobs" / "resumed")  # with the head's disk all of it would be lost, but not with this
    cli("submit", "--resume", "resumed", "--cluster", apart)
    assert_as_calm(cli, "resumed", calm, attempts=2)
    assert events(cli, "resumed", "resumed")[-1]["step"] == 15


def test_what_a_script_has_saved_outlives_its_job(cli: Cli, apart: str, tmp_path: Path) -> None:
    """The head has no copy of it, so the hosts keep it: for `--resume`, also of what has succeeded."""
    (tmp_path / "saves.py").write_text(SAVES)
    (both := tmp_path / "both").mkdir()
    user = Cli(cli.home, tmp_path)
    out = user("run", "--name", "saves-apart", "--cluster", apart, "--", "python", "saves.py", str(both), code=1)
    assert "starts from 0" in out
    for start in (1, 2):
        out = user("submit", "--resume", "saves-apart", "--cluster", apart)
        assert f"[0] starts from {start}" in out and f"[1] starts from {start}" in out
    assert not any("no saves" in note for note in cli.job("saves-apart")["notes"])


def test_what_a_script_has_saved_outlives_its_cluster_and_a_host_without_it_is_named(cli: Cli, tmp_path: Path) -> None:
    name, job = "outlived", "saves-outlive"
    path = cluster_file(cli.home, name)
    path.write_text(path.read_text().replace(f"{cli.home}/storage", "none"))
    (tmp_path / "saves.py").write_text(SAVES)
    (both := tmp_path / "both").mkdir()
    user = Cli(cli.home, tmp_path)
    cli("up", str(path))
    try:
        user("run", "--name", job, "--cluster", name, "--", "python", "saves.py", str(both), code=1)
        assert "--purge is for hosts over ssh" in cli("down", name, "--force", "--purge", code=2)
        dead = cli.record(name)
        psutil.Process(dead["holder"]["pid"]).kill()
        cli.wait_for(lambda: not processes_of(dead))
        assert "cleaning up" in cli("up", str(path))
        out = user("submit", "--resume", job, "--cluster", name)
        assert "[0] starts from 1" in out and "[1] starts from 1" in out

        cli("down", name)
        shutil.rmtree(cli.home / "saved" / f"{name}-1")  # as of a host that was replaced
        cli("up", str(path))
        out = user("submit", "--resume", job, "--cluster", name, code=1)
        assert "[0] starts from 2" in out and "[1] starts from 0" in out
        notes = cli.job(job)["notes"]
        assert f"attempt 3 finds what the script has saved on each host's own disk ({name}-0: 1 file, 1 B" in str(notes)
        assert any(note.startswith(f"{name}-1 (rank 1) has no saves of the script, and {name}-0") for note in notes)
        told = [[host["num_files"] for host in event["hosts"]] for event in cli.events(job, "saves")]
        assert told == [[0, 0], [1, 1], [1, 0]]
    finally:
        cli("down", name, "--force")
    assert len(list((cli.home / "saved").glob(f"{name}-*/{job}.*/step.txt"))) == 2
