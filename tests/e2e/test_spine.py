"""Submit, results, logs, status, cancel and the queue, on a real cluster of two emulated hosts."""

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from launcher.errors import UserError
from launcher.protocol import Connection
from tests.conftest import Cli, processes_of

pytestmark = pytest.mark.cluster


def test_up_again_changes_nothing(cli: Cli, cluster: str) -> None:
    before = cli.record(cluster)
    plan = cli("up", str(cli.home / f"{cluster}.yaml"), "--dry-run")
    assert "is up already" in plan and f"  keep    host  {cluster}-0" in plan and "start" not in plan
    assert "is up already" in cli("up", str(cli.home / f"{cluster}.yaml"))
    assert cli.record(cluster) == before


def test_up_with_another_specification_is_refused(cli: Cli, cluster: str) -> None:
    other = cli.home / "other.yaml"
    other.write_text((cli.home / f"{cluster}.yaml").read_text().replace("devices_per_host: 2", "devices_per_host: 3"))
    assert "devices_per_host: 2 -> 3" in cli("up", str(other), code=2)


def test_a_job_runs_on_all_devices_of_all_hosts_and_leaves_its_record(cli: Cli, cluster: str) -> None:
    cli("submit", "psum-check", "--name", "psum")
    result = cli.json("results", "psum")
    assert result["state"] == "SUCCEEDED"
    assert result["metrics"]["num_devices"] == 4
    assert result["metrics"]["psum"] == 0 + 1 + 2 + 3
    assert result["integrity"]["status"] == "ok"
    assert result["integrity"]["bytes_checked"] > 0
    assert len(result["result_digest"]) == 64
    job = cli.job("psum")
    assert [rank["host"] for rank in job["ranks"]] == [f"{cluster}-0", f"{cluster}-1"]
    assert job["spec"]["config"]["steps"] == 0
    assert len(job["spec"]["code_digest"]) == 64
    events = cli.events("psum")
    states = [event["state"] for event in events if event["type"] == "state"]
    assert states == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)


def test_the_same_job_has_the_same_digest_and_another_size_has_not(cli: Cli, cluster: str) -> None:
    digests = []
    for size in (64, 64, 32):
        out = cli.json("submit", "psum-check", "--set", "steps=3", "--set", f"size={size}")
        digests.append(out["result_digest"])
    assert digests[0] == digests[1] != digests[2]


def test_a_python_exception_on_one_rank_is_the_message_within_two_seconds(cli: Cli, cluster: str) -> None:
    hosts = [Path(host["folder"]) for host in cli.record(cluster)["hosts"]]
    (hosts[0] / "home" / "text.txt").write_text("only the first host has this text. " * 400)

    def seconds_to_the_end(name: str) -> float:
        out = cli("submit", "transformer", "--set", "data=host:~/text.txt", "--name", name,
                  "--max-failures", "0", code=1)  # fmt: skip
        job = cli.job(name)
        assert job["state"] == "FAILED"
        assert job["message"].startswith(f"rank 1 on host {cluster}-1 raised FileNotFoundError")
        assert "Traceback (most recent call last)" in job["message"]
        assert "text.txt" in out
        events = cli.events(name)
        raised: float = next(event["at"] for event in events if event["type"] == "error")
        ended: float = next(event["at"] for event in events if event.get("state") == "FAILED")
        pids = {rank["pid"] for rank in job["ranks"]}
        assert not pids & {process.pid for process in processes_of(cli.record(cluster))}
        return ended - raised

    # 0.7 s on a quiet machine; on a busy one some of them take longer.
    assert any(seconds_to_the_end(f"boom-{number}") < 2.0 for number in range(5))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["independent-chain"], "did you mean 'independent-chains'"),
        (["independent-chains", "--set", "num_samples=5"], "did you mean 'num_draws'"),
        (["independent-chains", "--set", "num_draws=many"], "whole number"),
        (["independent-chains", "--set", "num_draws"], "KEY=VALUE"),
        (["independent-chains", "--set", "sampler=nutz"], "did you mean 'nuts'"),
        (["transformer", "--set", "mesh=data:3"], "would fit"),
        (["transformer", "--set", "mesh=data:4", "--set", "batch_size=6"], "batch_size"),
        (["transformer", "--set", "data=no-such-file.txt"], "no such file"),
        (["psum-check", "--num-hosts", "3"], "2 host(s)"),
        (["psum-check", "--name", "Bad Name"], "lower-case"),
        (["psum-check", "--cluster", "nowhere"], "no cluster 'nowhere'"),
    ],
)
def test_mistakes_are_refused_before_any_rank_starts(cli: Cli, cluster: str, arguments: list[str], words: str) -> None:
    jobs = sorted((cli.home / "jobs").glob("*"))
    out = cli("submit", *arguments, code=2)
    assert words in out
    assert "Traceback" not in out
    assert out.startswith("error: ")
    assert sorted((cli.home / "jobs").glob("*")) == jobs


def test_names_are_unique_among_jobs_and_clusters(cli: Cli, cluster: str) -> None:
    cli("submit", "psum-check", "--name", "once")
    assert "there is a job of that name" in cli("submit", "psum-check", "--name", "once", code=2)
    assert "a cluster has that name" in cli("submit", "psum-check", "--name", cluster, code=2)
    cli("jobs", "--prune", "once")
    assert not (cli.home / "jobs" / "once").exists()


def test_a_record_of_another_job_of_the_same_name_is_known_by_its_id(cli: Cli, cluster: str) -> None:
    """As a client has it of a remote cluster, where somebody else's job had that name."""
    cli("submit", "psum-check", "--name", "twin")
    jobs = cli.home / "jobs"
    shutil.copytree(jobs / "twin", jobs / "twin.0c")
    mine = cli.job("twin")
    other = mine | {"spec": mine["spec"] | {"job_id": "0c"}, "storage": mine["storage"].rpartition(".")[0] + ".0c"}
    (jobs / "twin.0c" / "job.json").write_text(json.dumps(other))
    assert {job["name"] for job in cli.json("jobs")} >= {"twin", "twin.0c"}
    assert "SUCCEEDED" in cli("results", "twin.0c")
    own_id = mine["spec"]["job_id"]
    with Connection(Path(cli.record(cluster)["run_folder"]) / "supervisor.sock") as connection:
        with pytest.raises(UserError, match=f"has another job 'twin' by now: expected id 0c, got twin.{own_id}"):
            connection.ask({"op": "cancel", "name": "twin", "job_id": "0c"})
        connection.ask({"op": "prune", "name": "twin", "job_id": "0c"})
        assert cli.job("twin") == mine
    out = " ".join(cli("submit", "--resume", "twin.0c", code=2).split())
    assert f"expected twin.0c, submitted {mine['spec']['submitted']}, got twin.{own_id}" in out
    assert f"jobs --prune twin.{own_id}" in out and cli.job("twin") == mine
    cli("jobs", "--prune", f"twin.{own_id}")
    assert "twin" in cli("submit", "--resume", "twin.0c") and not (jobs / "twin.0c").exists()
    assert cli.job("twin")["spec"]["job_id"] == "0c" and cli.job("twin")["storage"].endswith("twin.0c")
    cli("jobs", "--prune", "twin.0c")


LONG = ("submit", "psum-check", "--set", "steps=1000000", "--set", "size=32", "--detach")


def test_jobs_queue_first_come_first_served_and_cancel_ends_every_process(cli: Cli, cluster: str) -> None:
    cli(*LONG, "--name", "long")
    cli.wait_for(lambda: cli.json("status", "long")["state"] == "RUNNING")
    out = cli("submit", "psum-check", "--no-wait", "--name", "impatient", code=2)
    assert f"{cluster}-0 by long" in out
    cli("submit", "psum-check", "--detach", "--name", "second")
    assert cli.json("status", "second")["state"] == "QUEUED"
    assert "have not ended: long, second" in cli("down", cluster, code=2)
    plan = cli.json("down", cluster, "--dry-run")
    assert [(action["verb"], action["name"]) for action in plan["actions"]] == [
        ("end", f"{cluster}-0"), ("end", f"{cluster}-1"),
    ]  # fmt: skip
    assert "have not ended: long, second; `down` refuses" in plan["notes"][0]
    status = cli.json("status", "long")
    assert {rank["host"] for rank in status["ranks"]} == {f"{cluster}-0", f"{cluster}-1"}
    cli("cancel", "long")
    pids = {rank["pid"] for rank in status["ranks"]}
    assert not pids & {process.pid for process in processes_of(cli.record(cluster))}
    assert cli.json("status", "long")["state"] == "CANCELLED"
    cli.wait_for(lambda: cli.json("status", "second")["state"] == "SUCCEEDED")


def test_control_c_detaches_and_the_job_goes_on(cli: Cli, cluster: str) -> None:
    process = cli.start(*[word for word in LONG if word != "--detach"], "--name", "left")
    cli.wait_for(lambda: (cli.home / "jobs/left").exists() and cli.json("status", "left")["state"] == "RUNNING")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "detached: job left goes on" in out
    assert "spmd-launch cancel left" in out
    assert cli.json("status", "left")["state"] == "RUNNING"
    cli("cancel", "left")


def test_a_rank_ended_by_a_signal_is_named(cli: Cli, cluster: str) -> None:
    cli(*LONG, "--name", "shot", "--max-failures", "0")
    cli.wait_for(lambda: cli.json("status", "shot")["state"] == "RUNNING")
    time.sleep(0.5)
    victim = cli.json("status", "shot")["ranks"][1]["pid"]
    next(p for p in processes_of(cli.record(cluster)) if p.pid == victim).kill()
    cli.wait_for(lambda: cli.json("status", "shot")["state"] == "FAILED")
    assert cli.job("shot")["message"].startswith(f"rank 1 on host {cluster}-1 was killed by signal 9 (SIGKILL)")


def test_a_frozen_rank_is_ended_by_cancel(cli: Cli, cluster: str) -> None:
    cli(*LONG, "--name", "frozen")
    cli.wait_for(lambda: cli.json("status", "frozen")["state"] == "RUNNING")
    victim = cli.json("status", "frozen")["ranks"][1]["pid"]
    next(p for p in processes_of(cli.record(cluster)) if p.pid == victim).suspend()
    cli("cancel", "frozen", timeout_s=20)


def test_standbys_become_warm_and_each_job_gets_fresh_processes(cli: Cli, cluster: str) -> None:
    cli.wait_for(lambda: cli.json("status", cluster)["state"] == "WARM", 120.0)
    pids = set()
    for name in ("fresh-1", "fresh-2"):
        cli("submit", "psum-check", "--name", name)
        pids |= {rank["pid"] for rank in cli.job(name)["ranks"]}
    assert len(pids) == 4


def test_fewer_hosts_than_the_cluster_has(cli: Cli, cluster: str) -> None:
    cli("submit", "psum-check", "--num-hosts", "1", "--name", "one-host")
    assert cli.json("results", "one-host")["metrics"]["num_devices"] == 2


def test_logs_carry_the_rank(cli: Cli, cluster: str) -> None:
    cli("submit", "psum-check", "--name", "talk")
    out = cli("logs", "talk")
    assert "[0] " in out and "[1] " in out
    assert "[1] " not in cli("logs", "talk", "--rank", "0")
    assert "no log of rank 7" in cli("logs", "talk", "--rank", "7", code=2)


def test_doctor_finds_nothing_wrong(cli: Cli, cluster: str) -> None:
    report = cli.json("doctor", cluster)
    (examined,) = report["clusters"]
    assert examined["problems"] == []
    assert [fact["num_devices"] for fact in examined["facts"]] == [2, 2]
    assert len({fact["code_digest"] for fact in examined["facts"]}) == 1


def test_hosts_share_no_home_and_no_working_folder(cli: Cli, cluster: str) -> None:
    first, second = (Path(host["folder"]) for host in cli.record(cluster)["hosts"])
    assert first != second
    for name in ("home", "tmp", "work"):
        assert (first / name).is_dir() and (second / name).is_dir()


def test_the_token_is_private(cli: Cli, cluster: str) -> None:
    assert (cli.home / "clusters" / cluster / "token").stat().st_mode & 0o777 == 0o600
    run_folder = Path(cli.record(cluster)["run_folder"])
    assert (run_folder / "supervisor.sock").stat().st_mode & 0o077 == 0
    assert run_folder.stat().st_mode & 0o777 == 0o700, "in a folder of others, the socket could be replaced"
