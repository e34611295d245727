"""Faults on demand, on real processes: what happened is named, and the job goes on."""

import json
import re
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli, assert_nothing_left, cluster_file, command_of, processes_of, set_words

pytestmark = pytest.mark.cluster

STEPS = ("--set", "steps=120", "--set", "size=64", "--set", "report_every=10")


@pytest.fixture(scope="session")
def calm_digest(cli: Cli, cluster: str) -> str:
    cli("submit", "psum-check", *STEPS, "--name", "calm")
    digest: str = cli.json("results", "calm")["result_digest"]
    return digest


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("kill rank=1 step=40", "rank 1 on host {cluster}-1 was killed by signal 9 (SIGKILL)"),
        pytest.param(
            "raise rank=0 step=40",
            "rank 0 on host {cluster}-0 raised RuntimeError: raised by --inject at step 40",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "exit rank=1 step=40 code=7", "rank 1 on host {cluster}-1 ended with exit code 7", marks=pytest.mark.long
        ),
        pytest.param("oom rank=0 step=40", "rank 0 on host {cluster}-0 raised MemoryError", marks=pytest.mark.long),
        ("kill-agent host=1 step=40", "rank 1 on host {cluster}-1 was lost"),
        ("kill-supervisor step=40", "the supervisor was ended and started again"),
    ],
)
def test_a_job_goes_on_after(cli: Cli, cluster: str, calm_digest: str, fault: str, words: str) -> None:
    name = fault.split(maxsplit=1)[0]
    out = cli("submit", "psum-check", *STEPS, "--name", f"after-{name}", "--inject", fault)
    assert words.format(cluster=cluster) in out
    assert "attempt 2 starts from step 0: no checkpoint" in out
    job = cli.job(f"after-{name}")
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 2)
    assert job["result"]["result_digest"] == calm_digest
    assert len(cli.events(f"after-{name}", "recovered")) == 1
    assert cli.json("status", f"after-{name}")["notes"] == job["notes"] != []
    first = {rank["pid"] for rank in job["ranks"]}
    assert not first & {process.pid for process in processes_of(cli.record(cluster))}


@pytest.mark.slow
def test_a_full_disk_of_the_head_ends_no_job(cli: Cli, cluster: str, calm_digest: str) -> None:
    new = {key: cli.job("calm")[key] for key in ("format", "name", "cluster", "state", "spec")}
    room = len(json.dumps(new, indent=1)) + 100  # for the record of a job that is queued, and no more
    (supervisor,) = [p for p in processes_of(cli.record(cluster)) if "ray::Supervisor" in " ".join(command_of(p))]
    limits = supervisor.rlimit(resource.RLIMIT_FSIZE)
    supervisor.rlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        out = cli("submit", "psum-check", *STEPS, "--name", "full")
        assert "the head cannot write the job's record: " in out and "SUCCEEDED" in out
        assert cli.job("full")["state"] != "SUCCEEDED"
    finally:
        supervisor.rlimit(resource.RLIMIT_FSIZE, limits)
    cli.wait_for(lambda: cli.job("full")["state"] == "SUCCEEDED")
    assert cli.json("results", "full")["result_digest"] == calm_digest
    states = [event["state"] for event in cli.events("full", "state")]
    assert states == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]


@pytest.mark.slow
def test_a_crash_loop_ends(cli: Cli, cluster: str) -> None:
    out = cli("submit", "psum-check", *STEPS, "--name", "loop", "--inject", "exit rank=1 step=40 attempt=any", code=1)
    assert "3 attempts in a row failed and got no further than step 40" in out
    assert cli.job("loop")["attempt"] == 3


def test_no_restart_where_none_is_wanted(cli: Cli, cluster: str) -> None:
    fault = "kill rank=1 step=40"
    out = cli("submit", "psum-check", *STEPS, "--name", "once-only", "--max-failures", "0", "--inject", fault, code=1)
    assert "it failed 1 time(s) (--max-failures 0)" in out


def test_a_job_that_ended_is_resumed_with_its_whole_budget_and_keeps_its_record(
    cli: Cli, cluster: str, calm_digest: str
) -> None:
    faults = [word for attempt in (1, 2, 3) for word in ("--inject", f"raise rank=0 step=40 attempt={attempt}")]
    out = cli("submit", "psum-check", *STEPS, "--name", "again", "--max-failures", "1", *faults, code=1)
    assert "it failed 2 time(s) (--max-failures 1)" in out
    missed = "! --inject 'raise rank=0 step=40 attempt=3' did not happen: it is for attempt 3, and there were 2"
    assert missed in out and out.count("did not happen") == 1
    cli("submit", "--resume", "again", "--max-failures", "2", "--keep", "2")
    job = cli.job("again")
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 4)
    assert (job["spec"]["max_failures"], job["spec"]["keep"]) == (2, 2)
    assert job["result"]["result_digest"] == calm_digest
    assert [event["attempt"] for event in cli.events("again", "attempt")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["psum-check", "--inject", "kil rank=1 step=2"], "did you mean 'kill'"),
        (["psum-check", "--inject", "kill rank=2 step=2"], "ranks 0 to 1"),
        (["--resume", "no-such-job"], "no such job"),
        (["psum-check", "--resume", "calm"], "say which WORKLOAD"),
        (["--resume", "calm", "--seed", "1"], "--seed: a job that is resumed keeps its seed"),
        ([], "say which WORKLOAD"),
        (["psum-check", "--on-divergence", "ignore"], "restore"),
    ],
)
def test_mistakes_are_refused(cli: Cli, cluster: str, arguments: list[str], words: str) -> None:
    assert words in cli("submit", *arguments, code=2)


@pytest.fixture
def own(cli: Cli, request: pytest.FixtureRequest) -> Iterator[str]:
    """A cluster of its own with keys of the cluster file as the test's parameter says."""
    name = "own"
    path = cluster_file(cli.home, name)
    path.write_text(path.read_text() + request.param)
    cli("up", str(path))
    record = cli.record(name)
    yield name
    cli("down", name, "--force")
    assert_nothing_left(record, cli.home)


@pytest.mark.parametrize("own", ["min_hosts: 1\n"], indirect=True)
def test_a_lost_host_is_done_without_where_allowed_by_the_next_supervisor_too(cli: Cli, own: str) -> None:
    fault = "kill-raylet host=1 step=40"
    out = cli("submit", "psum-check", *STEPS, "--name", "fewer", "--cluster", own, "--inject", fault)
    assert "with 1 of 2 hosts, without own-1" in out
    assert cli.job("fewer")["hosts"] == ["own-0"]
    began = time.monotonic()
    assert "host own-1 does not answer: `spmd-launch up FILE`" in cli("doctor", own, code=1)
    assert "host own-1 does not answer: `spmd-launch up FILE`" in cli("doctor", own, "--security", code=1)
    assert time.monotonic() - began < 60.0  # of which this machine's own checks take most
    damage(cli, "damaged")
    out = cli("submit", "psum-check", *STEPS, "--name", "next-supervisor", "--cluster", own,
              "--inject", "kill-supervisor step=40")  # fmt: skip
    assert "starts with 1 of 2 hosts, without own-1 (lost)" in out
    assert "the supervisor was ended and started again" in out
    assert (cli.job("next-supervisor")["state"], cli.job("next-supervisor")["attempt"]) == ("SUCCEEDED", 2)
    damaged = cli.job("damaged")
    assert damaged["state"] == "FAILED" and "its record is bad: " in damaged["message"]
    assert [host["standby"] for host in cli.json("status", own)["hosts"]][1] == "LOST"


def damage(cli: Cli, name: str) -> None:
    """Leaves the record of a job that runs and of which nobody can tell what it is."""
    job = cli.job("fewer")
    del job["spec"]["workload"]
    (cli.home / "jobs" / name).mkdir()
    (cli.home / "jobs" / name / "job.json").write_text(json.dumps({**job, "name": name, "state": "RUNNING"}))


@pytest.mark.long
@pytest.mark.parametrize("own", ["spares: 1\n"], indirect=True)
def test_a_lost_host_is_replaced_by_a_spare(cli: Cli, own: str) -> None:
    fault = "kill-raylet host=1 step=40"
    out = cli("submit", "psum-check", *STEPS, "--name", "spare", "--cluster", own, "--inject", fault)
    assert "with own-2 in place of own-1" in out
    assert cli.job("spare")["hosts"] == ["own-0", "own-2"]
    cli("submit", "psum-check", "--name", "next", "--cluster", own)
    assert cli.job("next")["hosts"] == ["own-0", "own-2"]


def test_a_skipped_collective_is_refused_and_the_odd_rank_named(cli: Cli, cluster: str, calm_digest: str) -> None:
    fault = "skip-collective rank=1 step=40"
    out = cli("submit", "psum-check", *STEPS, "--name", "skipped", "--inject", fault, code=1)
    job = cli.job("skipped")
    assert (job["state"], job["attempt"], job["result"]) == ("FAILED", 1, None)
    said = "ranks have launched different programs: launches at the report of step 50: rank 0 {}, rank 1 {}"
    launches = [int(number) for number in re.findall(r"rank [01] (\d+)", job["message"])]
    assert job["message"].startswith(said.format(*launches)), job["message"]
    assert launches[1] == launches[0] - 1
    assert "launches at the report of step 50" in out


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_skips_a_launch_and_waits_for_the_others_where_they_compile_is_told(
    cli: Cli, cluster: str, rank: int
) -> None:
    small = ("steps=20", "steps_per_dispatch=2", "eval_every=10", "num_layers=1", "width=32", "ff_width=64",
             "context_length=16", "sample_length=0")  # fmt: skip
    job, fault = f"skipped-before-compile-{rank}", f"skip-collective rank={rank} step=7"
    out = cli("submit", "transformer", *set_words(small), "--name", job, "--inject", fault, code=1)
    launched = {rank: "compile validate", 1 - rank: "train"}
    said = f"rank 0 launched '{launched[0]}' where rank 1 launched '{launched[1]}'"
    assert (cli.job(job)["state"], cli.job(job)["attempt"], cli.job(job)["result"]) == ("FAILED", 1, None)
    assert re.match(rf"ranks have launched different programs: launch \d+: {said}\n", cli.job(job)["message"])
    assert "not tried again" in out


@pytest.mark.slow
def test_a_damaged_step_is_told_and_no_longer_promised(cli: Cli, cluster: str) -> None:
    small = ("num_warmup=20", "num_draws=20", "num_leapfrog_steps=4", "num_examples=200", "draws_per_dispatch=2")
    out = cli(
        "submit", "sharded-mcmc", *set_words(small), "--checkpoint-every", "8",
        "--name", "damaged",
        "--inject", "corrupt-checkpoint rank=1 step=28", "--inject", "kill rank=1 step=20 attempt=2",
    )  # fmt: skip
    assert "! checkpoint of step 24 is left out: " in out
    assert "attempt 3 restarts from step 16" in out, "at 20 none was committed after it"
    assert [event["step"] for event in cli.events("damaged", "resumed")] == [16, 16]


@pytest.mark.slow
def test_a_storage_that_is_not_mounted_starts_nothing_over(cli: Cli, cluster: str) -> None:
    small = ("steps=20", "mesh=2x2", "num_layers=1", "width=32", "ff_width=64", "context_length=16", "sample_length=0")
    job = ("transformer", *set_words(small), "--checkpoint-every", "5")
    cli("submit", *job, "--name", "unmounted", "--max-failures", "0", "--inject", "raise rank=0 step=16", code=1)
    saved = cli.job("unmounted")["checkpoint_step"]
    storage = Path(cli.job("unmounted")["storage"])
    mounted = storage.rename(storage.with_name("mounted-elsewhere"))
    storage.mkdir()  # what is seen where nothing is mounted
    out = cli("submit", "--resume", "unmounted", code=1)
    assert f"the job has saved step {saved} under {storage}, and the head finds no checkpoint there" in out
    assert (cli.job("unmounted")["state"], cli.job("unmounted")["checkpoint_step"]) == ("FAILED", saved)
    shutil.rmtree(storage)
    mounted.rename(storage)
    cli("submit", "--resume", "unmounted")
    (resumed,) = cli.events("unmounted", "resumed")
    assert resumed["step"] >= saved  # one whose commit was not heard of counts too


@pytest.mark.slow
@pytest.mark.parametrize("own", [""], indirect=True)
def test_a_replay_names_the_wrong_one_of_two_copies(cli: Cli, own: str) -> None:
    small = ("steps=20", "mesh=2x2", "num_layers=1", "width=32", "ff_width=64", "context_length=16", "sample_length=0")
    out = cli(
        "submit", "transformer", *set_words(small), "--name", "two-copies",
        "--checkpoint-every", "5", "--on-divergence", "replay",
        "--inject", "flip-bit leaf=params/embedding device=3 step=10", "--cluster", own,
    )  # fmt: skip
    assert "culprit unknown" in out
    # The checkpoint of step 5 is written in the background, and may not be committed yet.
    assert re.search(r"attempt 2 (re)?starts from step [05].*; it replays to step 10, to tell which", out)
    (replayed,) = cli.events("two-copies", "replayed")
    assert replayed["suspects"] == ["own-1"]
    assert re.match(r"replay from step [05] to 10 tells: the copy of params/embedding\[", replayed["message"])
    assert "(rank 1, host own-1) was wrong" in replayed["message"] and replayed["message"] in out
    suspects = {"own-0": None, "own-1": f"job two-copies: {replayed['message']}"}
    assert suspects_of(cli, own) == suspects
    assert (cli.job("two-copies")["state"], cli.job("two-copies")["attempt"]) == ("SUCCEEDED", 2)
    assert cli.job("two-copies")["result"]["integrity"]["status"] == "ok"  # of the attempt that gave the result
    found = processes_of(cli.record(own))
    (supervisor,) = [process for process in found if "ray::Supervisor" in " ".join(command_of(process))]
    supervisor.kill()
    assert cli.wait_for(lambda: suspects_of(cli, own)) == suspects, "the next supervisor knows"


def suspects_of(cli: Cli, cluster: str) -> dict[str, str | None]:
    """Why each host is suspected; empty while no supervisor answers."""
    hosts = cli.json("status", cluster).get("hosts", [])
    return {host["name"]: host["suspect"] for host in hosts if "suspect" in host}
