"""Clusters that take themselves down, with nobody near: by the supervisor's own clock, to the last process."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Cli, assert_nothing_left, cluster_file, command_of, processes_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

JOB = ("./my_workload.py:run", "--set", "num_steps=400", "--checkpoint-every", "0")


def limited(cli: Cli, name: str, limits: str) -> dict[str, Any]:
    """A cluster with limits that is up; its record."""
    path = cluster_file(cli.home, name)
    path.write_text(path.read_text() + limits)
    cli("up", str(path))
    return cli.record(name)


def wait_for_the_end(cli: Cli, record: dict[str, Any], within_s: float) -> None:
    cli.wait_for(Path(cli.home, "ended", f"{record['spec']['name']}.json").exists, within_s)  # and nothing before it
    assert_nothing_left(record, cli.home)


@pytest.mark.long  # that an idle cluster ends, tests/hosts/test_self_down.py shows
def test_a_cluster_without_a_job_ends_and_one_with_a_job_does_not(cli: Cli) -> None:
    name, limit_s = "idler", 20
    record = limited(cli, name, f"idle_down_after: {limit_s}s\n")
    # Longer than the limit in all, and each shorter than the watchdog lets a rank stand.
    sleeps = [word for step in (4, 8, 12, 16) for word in ("--inject", f"sleep rank=1 step={step} seconds=7")]
    settings = ("--set", "steps=20", "--set", "report_every=1")
    cli("submit", "psum-check", "--cluster", name, "--name", "keeps-it-up", *settings, *sleeps)
    assert len(cli.events("keeps-it-up", "injected")) == 4
    kept = Path(cli.home, "clusters", name, "guard.json")
    idle_since = cli.wait_for(lambda: json.loads(kept.read_text())["idle_since"])
    (supervisor,) = [p for p in processes_of(record) if "ray::Supervisor" in " ".join(command_of(p))]
    supervisor.kill()  # what it counted goes on
    status = cli.wait_for(lambda: limits_of(cli, name))
    assert json.loads(kept.read_text())["idle_since"] == idle_since
    cli.wait_for(lambda: "a job keeps it up" in cli("status", name), limit_s)
    assert status["idle_down_after"] == "20s" and status["ends_by"] == "idle_down_after"

    wait_for_the_end(cli, record, 30.0)
    words = "took itself down at "
    assert words in cli("status", name) and cli.json("status", name)["state"] == "WENT DOWN"
    assert words in cli("submit", "psum-check", "--cluster", name, code=2)
    assert [c["state"] for c in cli.json("list")["clusters"] if c["name"] == name] == ["WENT DOWN"]
    assert cli.job("keeps-it-up")["state"] == "SUCCEEDED" and "SUCCEEDED" in cli("results", "keeps-it-up")
    assert words in cli("down", name, "--dry-run")
    assert words in cli("down", name)
    assert "no cluster or job" in cli("status", name, code=2)


def limits_of(cli: Cli, name: str) -> dict[str, Any] | None:
    limits: dict[str, Any] | None = cli.json("status", name).get("limits")
    return limits


@pytest.mark.long
def test_at_the_end_of_its_lifetime_a_job_is_saved_cancelled_and_goes_on_elsewhere(cli: Cli, cluster: str) -> None:
    name = "brief"
    here = Cli(cli.home, ROOT / "examples")
    record = limited(cli, name, "max_lifetime: 60s\n")
    slow = [word for step in range(10, 400, 10) for word in ("--inject", f"sleep rank=1 step={step} seconds=2")]
    out = here("submit", *JOB, "--cluster", name, "--name", "outlives-it", *slow, code=1)
    assert out.count("! cluster brief goes down at ") == 1 and "goes down at" in out and "max_lifetime is 1m" in out
    wait_for_the_end(cli, record, 30.0)
    job = cli.job("outlives-it")
    saved = [event["step"] for event in cli.events("outlives-it", "checkpoint") if event["rank"] == 0]
    assert job["state"] == "CANCELLED" and len(saved) == 1, "it saves none by itself until its end"
    way_on = f"`spmd-launch submit --resume outlives-it` goes on from step {saved[-1]}"
    assert f"1m after `up` (max_lifetime); {way_on}" in job["message"] and way_on in cli("results", "outlives-it")
    cli("submit", "--resume", "outlives-it", "--cluster", cluster)
    assert cli.events("outlives-it", "resumed")[-1]["step"] == saved[-1]
    here("submit", *JOB, "--cluster", cluster, "--name", "outlives-it-calm")
    ends = [cli.job(name)["result"]["result_digest"] for name in ("outlives-it", "outlives-it-calm")]
    assert ends[0] == ends[1]
    cli("down", name)
