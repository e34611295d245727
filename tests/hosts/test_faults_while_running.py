"""Machines and networks fail while a job runs: what is told, how soon, and that the result has the calm run's bits."""

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.machine import NETWORK_LEASE_S
from launcher.job_folder import JobFolder
from tests.hosts.commands import wait_until
from tests.hosts.conftest import Lab
from tests.hosts.host import Host

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]

SLACK = float(os.environ.get("SLACK", "1"))  # how many times the promised seconds, where others use the machine too
REPORT_S = 30.0  # a lost host is named within this
LEASE_S = float(NETWORK_LEASE_S)
LONG_CUT_S = 60.0

# Bits of the chains do not depend on hosts. Rank 0 of the first attempt takes its time, so that there is a middle.
CHAINS = (
    "independent-chains",
    *("--set", "num_draws=300", "--set", "num_warmup=100", "--set", "draws_per_dispatch=20"),
)
PAUSES = [word for step in range(60, 400, 40) for word in ("--inject", f"sleep rank=0 step={step} seconds=2")]


@dataclasses.dataclass(frozen=True)
class Running:
    """A job that is followed by a client, and what its head writes of it."""

    lab: Lab
    name: str
    client: "subprocess.Popen[str]"

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """From the head's disk, whatever the network does."""
        head = self.lab.hosts["h1"]
        folder = JobFolder(head.path(f"/root/.spmd-launch/hosts/{head.address}/jobs/{self.name}"))
        return [event for event in folder.lines("events.jsonl") if kind in ("", event["type"])]

    def wait_for(self, what: Callable[[], object], why: str, timeout_s: float) -> float:
        """Waits until `what()` is true; returns the seconds."""
        start = time.monotonic()
        wait_until(what, f"{why}; job {self.name}: {self.events()[-5:]}", timeout_s * SLACK)
        return time.monotonic() - start

    def end(self, timeout_s: float) -> str:
        """What the client has printed, once it has ended well."""
        try:
            out, err = self.client.communicate(timeout=timeout_s * SLACK)
        except subprocess.TimeoutExpired:
            self.client.kill()
            out, err = self.client.communicate()
            raise AssertionError(f"job {self.name} goes on\n{out}\n{err}\n{self.events()[-10:]}") from None
        assert self.client.returncode == 0, f"{out}\n{err}\n{self.events()}"
        return out + err

    def storage(self) -> Path:
        return self.lab.hosts["h1"].path(self.lab.cli.job(self.name)["storage"])

    def committed(self) -> set[str]:
        """Names of the steps that count."""
        return {path.parent.name for path in self.storage().glob("step_*/manifest.json")}


def begin(lab: Lab, name: str, *job: str) -> Running:
    """A job that has made its second checkpoint."""
    running = Running(lab, name, lab.cli.start("submit", *job, "--name", name, "--checkpoint-every", "40"))
    try:
        folder = lab.hosts["h1"].path(f"/root/.spmd-launch/hosts/{lab.hosts['h1'].address}/jobs")
        wait_until((folder / name / "job.json").exists, f"{name} is there", 60 * SLACK)
        running.wait_for(lambda: len(steps(running)) >= 2, "two checkpoints", 60)
    except BaseException:
        running.client.kill()
        print(running.client.communicate())
        raise
    return running


def steps(running: Running) -> list[int]:
    """Steps that were committed, in the order in which they were."""
    return [event["step"] for event in running.events("checkpoint") if event["rank"] == 0]


def record(running: Running) -> dict[str, Any]:
    found: dict[str, Any] = running.lab.cli.job(running.name)
    return found


def ranks_of(lab: Lab, host: Host) -> list[str]:
    """Ranks that run on a host, as its agent records them for its holder."""
    folder = host.path(f"/root/.spmd-launch/hosts/{host.address}/clusters/lab/hosts/{host.address}/ranks")
    pids = [json.loads(path.read_text())["rank"]["pid"] for path in folder.glob("*.json")]
    return [f"{pid}" for pid in pids if host.path(f"/proc/{pid}").exists()]


def assert_only_newer_attempts_commit(running: Running) -> None:
    """After an attempt was given up it has committed nothing, and the head has no step that no attempt told of."""
    given_up = 0
    for event in running.events():
        if event["type"] == "attempt-failed":
            given_up = event["attempt"]
        if event["type"] == "checkpoint":
            assert _attempt(running, event["path"]) > given_up, event
    told = {event["path"].rpartition("/")[2] for event in running.events("checkpoint")}
    assert running.committed() and running.committed() <= told


def _attempt(running: Running, path: str) -> int:
    """`step_00000040.JOB.2.18c3d2.x7f3a9c` is of attempt 2."""
    return int(path.rpartition("/")[2].removeprefix("step_").split(".")[2])


@pytest.fixture(scope="module")
def calm(lab: Lab) -> str:
    """The digest of a calm run on two hosts."""
    digest: str = lab.cli.json("submit", *CHAINS, "--name", "calm", "--num-hosts", "2")["result_digest"]
    return digest


def assert_recovered(running: Running, lost: Sequence[Host], calm: str, attempts: int = 2) -> None:
    job = record(running)
    attempts += len(running.events("moved"))  # it may grow back when hosts have joined again
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", attempts), running.events("note")
    assert job["result"]["result_digest"] == calm
    (failed,) = running.events("attempt-failed")
    assert failed["cause"] == "preempted" and any(host.address in failed["message"] for host in lost), failed
    assert running.events("resumed")[-1]["step"] in (0, *steps(running))
    assert_only_newer_attempts_commit(running)


def test_a_cut_of_8_s_is_survived(lab: Lab, calm: str) -> None:
    running, host = begin(lab, "short-cut", *CHAINS, *PAUSES), lab.hosts["h2"]
    host.cut()
    time.sleep(8)
    host.heal()
    running.end(120)
    job = record(running)
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 1), running.events("note")
    assert job["result"]["result_digest"] == calm
    assert not [event for event in running.events("watchdog") if event["fatal"]]


@pytest.mark.long
def test_packets_are_lost(lab: Lab) -> None:
    """20 % of them on all hosts: slow, but right, and nobody is blamed."""
    job = ("psum-check", "--set", "steps=20", "--set", "size=64", "--set", "report_every=5")
    calm = lab.cli.json("submit", *job, "--name", "no-loss")["result_digest"]
    for host in lab.hosts.hosts.values():
        host.loss(20)
    running = Running(lab, "loss", lab.cli.start("submit", *job, "--name", "loss"))
    running.end(240)
    job_record = record(running)
    assert (job_record["state"], job_record["attempt"]) == ("SUCCEEDED", 1), running.events("note")
    assert job_record["result"]["result_digest"] == calm
    assert not running.events("watchdog")


@pytest.mark.long
def test_a_cut_of_a_minute_is_recovered_from(lab: Lab, calm: str) -> None:
    """On the two hosts that are left; the third one ends what it has, writes nothing, and joins again."""
    running, host = begin(lab, "long-cut", *CHAINS, *PAUSES), lab.hosts["h2"]
    start = time.monotonic()
    host.cut()
    took = running.wait_for(lambda: running.events("attempt-failed"), "the loss is told", REPORT_S)
    running.wait_for(lambda: not ranks_of(lab, host), "the rank ends by its lease", LEASE_S + 10)
    running.end(120)
    assert_recovered(running, [host], calm)
    assert record(running)["hosts"] == [lab.hosts[name].address for name in ("h1", "h3")]
    committed = running.committed()
    time.sleep(max(0.0, LONG_CUT_S - (time.monotonic() - start)))
    assert "LOST" in lab.cli("status", lab.name)
    host.heal()
    back = running.wait_for(lambda: "LOST" not in lab.cli("status", lab.name), "it joins again", 60)
    print(f"told after {took:.1f} s, joined again {back:.1f} s after the cut's end")
    assert running.committed() == committed
    job = lab.cli.json("submit", "psum-check", "--name", "after-cut")
    assert job["state"] == "SUCCEEDED" and len(lab.cli.job("after-cut")["ranks"]) == 3


@pytest.mark.long
def test_the_head_is_cut_off_for_a_minute(lab: Lab, calm: str) -> None:
    """From hosts and client: ranks end, nothing is written, and all go on when it is back."""
    running, head = begin(lab, "head-cut", *CHAINS, *PAUSES), lab.hosts["h1"]
    others = [lab.hosts["h2"], lab.hosts["h3"]]
    start = time.monotonic()
    head.cut()
    took = running.wait_for(lambda: running.events("attempt-failed"), "the loss is told", REPORT_S)
    running.wait_for(lambda: not any(ranks_of(lab, host) for host in others), "ranks end by leases", LEASE_S + 10)
    before = running.committed()
    assert "UNREACHABLE" in lab.cli("status", lab.name)
    time.sleep(max(0.0, LONG_CUT_S - (time.monotonic() - start)))
    assert running.committed() == before and running.client.poll() is None
    head.heal()
    healed = time.monotonic()
    said = running.end(240)
    print(f"told after {took:.1f} s, ended {time.monotonic() - healed:.1f} s after the cut's end\n{said}")
    assert "no contact with the head" in said
    assert_recovered(running, others, calm)
    running.wait_for(lambda: "LOST" not in lab.cli("status", lab.name), "all join again", 60)


def test_a_host_is_killed_and_boots_again(lab: Lab, calm: str) -> None:
    """The last test of this cluster: it ends here."""
    running, host = begin(lab, "killed", *CHAINS, *PAUSES), lab.hosts["h2"]
    host.kill()
    took = running.wait_for(lambda: running.events("attempt-failed"), "the loss is told", REPORT_S)
    running.end(120)
    print(f"told after {took:.1f} s")
    assert_recovered(running, [host], calm)
    assert record(running)["hosts"] == [lab.hosts[name].address for name in ("h1", "h3")]
    said = lab.cli("down", lab.name, code=1)
    assert f"what {host.address} has of the cluster stays until `down` reaches it" in said
    host.boot()
    lab.cli("down", lab.name)
    assert not lab.processes() and not lab.folders()
    lab.cli("up", str(lab.file))
    assert lab.cli.json("submit", "psum-check", "--name", "after-boot")["state"] == "SUCCEEDED"
    assert len(lab.cli.job("after-boot")["ranks"]) == 3
