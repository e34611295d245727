"""Whatever is killed, nothing is left: each test has a cluster of its own with a job that runs on it."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Cli, assert_nothing_left, cluster_file, command_of, lives, processes_of

pytestmark = pytest.mark.cluster


class Victim:
    """A cluster with a running job, and its processes by role."""

    def __init__(self, cli: Cli, name: str):
        self.cli, self.name, self.job = cli, name, f"job-{name}"
        cli("up", str(cluster_file(cli.home, name, devices_per_host=1)))
        self.record: dict[str, Any] = cli.record(name)
        cli("submit", "psum-check", "--cluster", name, "--set", "steps=1000000", "--set", "size=16", "--detach",
            "--max-preemptions", "0", "--max-failures", "0", "--name", self.job)  # fmt: skip
        cli.wait_for(lambda: cli.json("status", self.job)["state"] == "RUNNING")

    def processes(self) -> list[psutil.Process]:
        return processes_of(self.record)

    def with_title(self, words: str) -> list[psutil.Process]:
        found = [process for process in self.processes() if words in " ".join(command_of(process))]
        return sorted(found, key=lambda process: process.pid)

    def ranks(self) -> list[psutil.Process]:
        pids = {rank["pid"] for rank in self.cli.json("status", self.job)["ranks"]}
        return [process for process in self.processes() if process.pid in pids]


@pytest.fixture
def victim(cli: Cli, request: pytest.FixtureRequest) -> Iterator[Victim]:
    name = "v-" + request.node.name.removeprefix("test_").replace("_", "-")[:30].strip("-")
    victim = Victim(cli, name)
    yield victim
    if (cli.home / "clusters" / name).exists():
        cli("down", name, "--force")
    assert_nothing_left(victim.record, cli.home)


def gone(processes: list[psutil.Process], within_s: float) -> None:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    assert not [process for process in alive if lives(process)]


@pytest.mark.long
def test_agent_killed(victim: Victim) -> None:
    ranks = victim.ranks()
    victim.with_title("ray::Agent")[0].kill()
    gone(ranks, 15.0)
    victim.cli.wait_for(lambda: victim.cli.json("status", victim.job)["state"] == "FAILED", 20.0)
    assert "was lost" in victim.cli.job(victim.job)["message"]
    sleepers = sleep_on(victim, "sleep-killed")  # a command, which knows nothing of a lease
    victim.with_title("ray::Agent")[0].kill()
    gone(sleepers, 15.0)
    victim.cli.wait_for(lambda: victim.cli.json("status", "sleep-killed")["state"] == "FAILED", 20.0)
    sleepers = sleep_on(victim, "sleep-cancelled")
    victim.cli("cancel", "sleep-cancelled")
    gone(sleepers, 0.0)


def sleep_on(victim: Victim, job: str) -> list[psutil.Process]:
    """Starts a job that sleeps on both hosts, in a child of a shell; returns its four processes."""
    script = "sleep 1000; true"  # or the shell would become the sleep
    victim.cli("run", "--cluster", victim.name, "--max-preemptions", "0", "--name", job, "--detach", "--", "bash", "-c",
               script)  # fmt: skip
    victim.cli.wait_for(lambda: len(victim.with_title("sleep 1000")) == 4, 20.0)
    return victim.with_title("sleep 1000")


@pytest.mark.long
def test_raylet_of_a_worker_killed(victim: Victim) -> None:
    ranks = victim.ranks()
    option = f"--node-name={victim.name}-1"
    raylets = [p for p in victim.with_title("raylet/raylet") if option in " ".join(command_of(p))]
    (raylets or victim.with_title("raylet/raylet")[1:])[0].kill()
    gone(ranks, 20.0)
    victim.cli.wait_for(lambda: victim.cli.json("status", victim.job)["state"] == "FAILED", 30.0)
    assert f"{victim.name}-1" in victim.cli.job(victim.job)["message"]
    assert victim.cli.json("status", victim.name)["state"] == "LOST HOSTS"


@pytest.mark.slow
def test_supervisor_killed(victim: Victim) -> None:
    ranks = victim.ranks()
    victim.with_title("ray::Supervisor")[0].kill()
    gone(ranks, 20.0)  # the lease: nobody would learn what they do
    victim.cli.wait_for(lambda: victim.cli.json("status", victim.name)["state"] != "DEAD", 30.0)
    victim.cli.wait_for(lambda: victim.cli.job(victim.job)["state"] == "FAILED")
    assert "supervisor" in victim.cli.job(victim.job)["message"]
    victim.cli("submit", "psum-check", "--cluster", victim.name)  # a new supervisor serves the same hosts


@pytest.mark.slow
def test_holder_killed_with_a_frozen_rank(victim: Victim) -> None:
    processes = victim.processes()
    victim.ranks()[0].suspend()
    psutil.Process(victim.record["holder"]["pid"]).kill()
    gone(processes, 30.0)
    assert victim.cli.json("status", victim.name)["state"] == "DEAD"
    assert "spmd-launch down" in victim.cli("status", victim.name)
    victim.cli("up", str(victim.cli.home / f"{victim.name}.yaml"))  # `up` cleans what the dead one left
    assert victim.cli.job(victim.job)["state"] == "FAILED"
    assert not Path(victim.record["run_folder"]).exists()
    victim.record = victim.cli.record(victim.name)


def test_down_refuses_then_force_cancels(victim: Victim) -> None:
    assert victim.job in victim.cli("down", victim.name, code=2)
    victim.cli("down", victim.name, "--force")
    assert victim.cli.job(victim.job)["state"] == "CANCELLED"
    assert (victim.cli.home / "jobs" / victim.job / "events.jsonl").exists()


@pytest.mark.long
def test_down_waits_for_a_supervisor_that_is_started_again(victim: Victim) -> None:
    second = f"second-{victim.name}"  # which waits, and goes on to
    victim.cli("submit", "psum-check", "--cluster", victim.name, "--set", "steps=1000000", "--set", "size=16",
               "--detach", "--name", second)  # fmt: skip
    victim.with_title("ray::Supervisor")[0].kill()
    out = victim.cli("down", victim.name, code=2)
    assert "asking again for up to 30 s" in out and second in out
    victim.cli("down", victim.name, "--force")
    assert victim.cli.job(second)["state"] == "CANCELLED"


def test_down_ends_frozen_ranks(victim: Victim) -> None:
    for rank in victim.ranks():
        rank.suspend()
    start = time.monotonic()
    victim.cli("down", victim.name, "--force")
    assert time.monotonic() - start < 30.0


def test_an_interrupted_up_leaves_nothing(cli: Cli) -> None:
    process = cli.start("up", str(cluster_file(cli.home, "halfway")))
    cli.wait_for((cli.home / "clusters/halfway/request.json").exists)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert not (cli.home / "clusters/halfway").exists()
    assert not [p for p in psutil.process_iter() if f"{cli.home}/clusters/halfway" in " ".join(command_of(p))]
