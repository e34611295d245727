"""What can be seen of a job and its hosts: curves, profiles, links. On a real cluster of two emulated hosts."""

import jax
import pytest

from tests.conftest import Cli

pytestmark = pytest.mark.cluster


@pytest.mark.slow
def test_a_profile_changes_no_bit_and_every_rank_leaves_one(cli: Cli, cluster: str) -> None:
    steps = ("submit", "psum-check", "--set", "steps=40", "--set", "size=32", "--set", "report_every=10")
    plain = cli.json(*steps, "--profile", "400:500", "--name", "unprofiled")
    profiled = cli.json(*steps, "--profile", "10:20", "--name", "profiled")
    assert plain["result_digest"] == profiled["result_digest"]
    assert cli.job("unprofiled")["notes"] == ["--profile 400:500: no profile was taken; the last step reported is 40"]
    assert not (cli.home / "jobs" / "unprofiled" / "plugins").exists()
    assert [(event["first"], event["last"]) for event in cli.events("profiled", "profile")] == [(11, 20)] * 2
    folder = cli.home / "jobs" / "profiled" / "plugins" / "profile" / "attempt-1"
    found = sorted(folder.glob("*.xplane.pb"))
    assert [path.name for path in found] == [f"{cluster}-0.xplane.pb", f"{cluster}-1.xplane.pb"]
    for path in found:
        names = {
            event.name
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes
            for line in plane.lines
            for event in line.events
        }
        assert any("psum" in name or "all-reduce" in name for name in names), sorted(names)[:50]


def test_a_running_job_is_profiled_and_its_hosts_links_are_not_measured_meanwhile(cli: Cli, cluster: str) -> None:
    cli("submit", "psum-check", "--set", "steps=1000000", "--set", "size=32", "--detach", "--name", "watched")
    cli.wait_for(lambda: [rank for rank in cli.json("status", "watched")["ranks"][1:] if rank["step"] > 0])
    out = cli("profile", "watched", "--steps", "100")
    folder = cli.home / "jobs" / "watched" / "plugins" / "profile" / "attempt-1-asked-1"
    assert f"2 rank(s): {folder}" in out
    assert len(list(folder.glob("*.xplane.pb"))) == 2
    before = sorted((cli.home / "jobs").iterdir())
    assert f"{cluster}-0 by watched" in cli("doctor", cluster, "--bandwidth", code=2)
    assert sorted((cli.home / "jobs").iterdir()) == before
    cli("cancel", "watched")
    assert "has ended (CANCELLED)" in cli("profile", "watched", code=2)


def test_the_links_are_measured(cli: Cli, cluster: str) -> None:
    out = cli("doctor", cluster, "--bandwidth", "--set", "max_bytes=4")
    assert "2 host(s), 4 devices" in out
    assert f"{cluster}-0 - {cluster}-1" in out and "no other to compare it with" in out
    for collective in ("psum", "all-gather", "all-to-all", "broadcast"):
        assert collective in out
    assert max(map(len, out.splitlines())) <= 80
    assert "max_bytes=3" in cli("doctor", cluster, "--bandwidth", "--set", "max_bytes=3", code=2)
    found = cli.json("doctor", cluster, "--bandwidth", "--set", "seconds=300", "--set", "max_bytes=1000")
    assert found["problems"] == []
    whole = next(group for group in found["groups"] if len(group["hosts"]) == 2)
    assert len(whole["measurements"]) == 8 and whole["left_out"] == []
    metrics = cli.json("results", found["job"])["metrics"]
    assert metrics["num_devices"] == 4 and metrics["psum_latency_s"] > 0


def test_a_command_has_no_steps_to_profile(cli: Cli, cluster: str) -> None:
    cli("run", "--name", "stepless", "--detach", "--", "sleep", "60")
    cli.wait_for(lambda: cli.json("status", "stepless")["state"] == "RUNNING")
    assert "jax.profiler" in cli("profile", "stepless", code=2)
    cli("cancel", "stepless")
