"""Ranks that hang on a real cluster: named within the bound, their stacks kept, nothing of them left."""

import re
import signal
import time
from typing import Any

import psutil
import pytest

from tests.conftest import Cli, command_of, processes_of

pytestmark = pytest.mark.cluster
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")

TRANSFORMER = ("submit", "transformer", "--set", "steps=100000", "--set", "eval_every=5", "--set",
               "mesh=data:2,model:2", "--detach")  # fmt: skip


def start(cli: Cli, job: str) -> dict[str, Any]:
    """Starts a transformer and waits until it has made steps."""
    cli(*TRANSFORMER, "--name", job)
    return dict(cli.wait_for(lambda: _if_at_work(cli.json("status", job)), 120.0))


def _if_at_work(status: dict[str, Any]) -> dict[str, Any] | None:
    return status if status["ranks"] and all(rank["step"] for rank in status["ranks"]) else None


def findings(cli: Cli, job: str) -> list[dict[str, Any]]:
    """What the watchdog has found, without slow ranks: on a busy machine, or while py-spy looks, any may be one."""
    return [event for event in cli.events(job, "watchdog") if event["finding"] != "slow"]


def end_if_running(cli: Cli, job: str) -> None:
    if cli.job(job)["state"] not in ENDED:
        cli("cancel", job)


@pytest.mark.slow
@pytest.mark.long  # the sample of faults has frozen ranks
def test_a_frozen_rank_is_named_and_leaves_nothing(cli: Cli, cluster: str) -> None:
    status = start(cli, "freezes")
    victim = status["ranks"][1]["pid"]
    started = time.monotonic()
    psutil.Process(victim).send_signal(signal.SIGSTOP)
    finding = cli.wait_for(lambda: findings(cli, "freezes"), 60.0)[-1]
    seconds = time.monotonic() - started
    end_of_attempt = cli.wait_for(lambda: not psutil.pid_exists(victim), 10.0)
    end_if_running(cli, "freezes")
    assert end_of_attempt
    assert (finding["finding"], finding["ranks"], finding["fatal"]) == ("silent", [1], True)
    assert "its process is stopped (state T)" in finding["text"]
    assert seconds < 30.0, "9 s on a quiet machine; on a busy one py-spy may take four more"
    stacks = {rank: (cli.home / f"jobs/freezes/logs/attempt-1.rank-{rank}.stack.txt").read_text() for rank in (0, 1)}
    assert "state T" in stacks[1] and "loop.py" in stacks[1]
    assert "loop.py" in stacks[0]
    assert "rank 0, kept from attempt 1" in cli("stacks", "freezes")
    assert not {rank["pid"] for rank in status["ranks"]} & {p.pid for p in processes_of(cli.record(cluster))}


def test_stacks_of_a_running_job_show_all_ranks_and_hold_nothing_up(cli: Cli, cluster: str) -> None:
    start(cli, "looked-at")
    # Where py-spy is not done in time the rank itself prints its stacks, without the threads' names.
    out = cli.wait_for(lambda: (text := cli("stacks", "looked-at")).count("MainThread") == 2 and text, 120.0)
    for rank in (0, 1):
        assert f"rank {rank} on host {cluster}-{rank}: process " in out
    assert out.count("loop.py") >= 2
    before = cli.json("status", "looked-at")["ranks"][0]["step"]
    cli.wait_for(lambda: cli.json("status", "looked-at")["ranks"][0]["step"] > before, 30.0)
    assert findings(cli, "looked-at") == []
    cli("logs", "looked-at")  # the files of stacks lie beside the logs
    cli("cancel", "looked-at")


def test_stacks_of_a_job_that_is_about_to_start_are_waited_for(cli: Cli, cluster: str) -> None:
    cli("submit", "psum-check", "--set", "steps=1000000", "--name", "about-to-start", "--detach")
    assert f"rank 0 on host {cluster}-0: process " in cli("stacks", "about-to-start")
    cli("cancel", "about-to-start")


def test_stacks_of_what_does_not_run_are_refused_in_words(cli: Cli, cluster: str) -> None:
    cli("submit", "psum-check", "--name", "over")
    assert "has ended (SUCCEEDED), and no stacks of it were taken" in cli("stacks", "over", code=2)


@pytest.mark.slow
@pytest.mark.long  # so do hosts over ssh, and the sample of faults has lost ones
def test_a_silent_host_is_suspected_then_lost_and_a_short_silence_is_survived(cli: Cli, cluster: str) -> None:
    status = start(cli, "cut-off")
    rank = psutil.Process(status["ranks"][1]["pid"])
    agent = rank.parents()[1]  # of the template
    assert "ray::Agent" in " ".join(command_of(agent))
    try:
        agent.suspend()
        time.sleep(5.0)
        agent.resume()
        step = cli.json("status", "cut-off")["ranks"][1]["step"]
        cli.wait_for(lambda: cli.json("status", "cut-off")["ranks"][1]["step"] > step, 20.0)
        assert findings(cli, "cut-off") == []
        started = time.monotonic()
        agent.suspend()
        suspected = cli.wait_for(lambda: findings(cli, "cut-off"), 20.0)[0]
        suspected_s = time.monotonic() - started
        # at 15 s, or when the peer's collective has noticed
        failed = cli.wait_for(lambda: cli.events("cut-off", "attempt-failed"), 40.0)[0]
        gone, _ = psutil.wait_procs([rank], timeout=10.0)
    finally:
        agent.resume()
    assert (suspected["finding"], suspected["ranks"], suspected["fatal"]) == ("host-silent", [1], False)
    assert suspected_s < 15.0, "10 s on a quiet machine"
    assert gone, "its lease ended it"
    end_if_running(cli, "cut-off")
    assert failed["message"].startswith(f"rank 1 on host {cluster}-1 was lost")
    cli.wait_for(lambda: all(host["job"] is None for host in cli.json("status", cluster)["hosts"]), 30.0)


@pytest.mark.slow
def test_a_host_that_stands_still_before_a_job_starts_is_named_and_waited_for(cli: Cli, cluster: str) -> None:
    status = start(cli, "before")
    agent = psutil.Process(status["ranks"][1]["pid"]).parents()[1]  # of the template
    assert "ray::Agent" in " ".join(command_of(agent))
    cli("cancel", "before")
    agent.suspend()
    try:
        cli("submit", "psum-check", "--name", "not-yet", "--detach")
        failed = cli.wait_for(lambda: cli.events("not-yet", "attempt-failed"), 60.0)[0]  # at 15 s
        cli.wait_for(lambda: cli.events("not-yet", "note"), 30.0)
    finally:
        agent.resume()
    named = f"before the ranks could start, host {cluster}-1 was lost: its agent has not answered for 15 s"
    assert (failed["message"], failed["cause"]) == (named, "preempted")
    cli.wait_for(lambda: cli.job("not-yet")["state"] in ENDED, 60.0)
    job = cli.job("not-yet")
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 2), job["message"]


@pytest.mark.slow
def test_ranks_that_ended_with_a_stalled_supervisor_count_as_lost(cli: Cli, cluster: str) -> None:
    start(cli, "stalled")
    found = processes_of(cli.record(cluster))
    (supervisor,) = [process for process in found if "ray::Supervisor" in " ".join(command_of(process))]
    supervisor.suspend()
    try:
        time.sleep(13.0)
    finally:
        supervisor.resume()
    failed = cli.wait_for(lambda: cli.events("stalled", "attempt-failed"), 40.0)[0]
    end_if_running(cli, "stalled")
    assert failed["cause"] == "preempted"
    assert "its lease ran out: the supervisor had not asked for 1" in failed["message"]


@pytest.mark.long
def test_a_slow_host_is_warned_of_with_its_ratio_and_goes_on(cli: Cli, cluster: str) -> None:
    cli("submit", "psum-check", "--set", "steps=1000000", "--set", "size=64", "--set", "report_every=10", "--detach",
        "--name", "slow", "--inject", "slow rank=1 step=10 factor=4")  # fmt: skip
    notes = cli.wait_for(lambda: cli.json("status", "slow")["notes"], 120.0)  # 11 s after the start, on a quiet machine
    before = cli.json("status", "slow")
    cli.wait_for(lambda: cli.json("status", "slow")["ranks"][1]["step"] > before["ranks"][1]["step"])
    cli("cancel", "slow")
    assert len(notes) == 1
    assert re.match(rf"rank 1 on host {cluster}-1 is slow: .* \d+\.\d times the median of the others", notes[0])
    (finding,) = cli.events("slow", "watchdog")
    assert (finding["finding"], finding["ranks"], finding["fatal"]) == ("slow", [1], False)
    assert (before["state"], before["attempt"]) == ("RUNNING", 1)
