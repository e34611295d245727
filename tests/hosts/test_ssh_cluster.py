"""The same commands on machines that share nothing: three hosts over ssh, and a client that is none of them."""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import Cli, cluster_file, command_of
from tests.hosts.conftest import BEFORE_UP, Lab

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]

JOBS = {
    "independent-chains": ["--set", "num_draws=60", "--set", "num_warmup=60"],
    "sharded-mcmc": ["--set", "num_draws=20", "--set", "num_warmup=20"],
    "transformer": [
        *("--set", "steps=12", "--set", "batch_size=24", "--set", "num_layers=2"),
        *("--set", "eval_batches=2", "--set", "sample_length=20"),
    ],
}


@pytest.fixture(scope="module")
def local_digests() -> Iterator[dict[str, str]]:
    """What the local provider makes of the same jobs, on as many hosts and devices."""
    with tempfile.TemporaryDirectory(prefix="slt-") as folder:
        cli = Cli(Path(folder))
        cli("up", str(cluster_file(Path(folder), "near", num_hosts=3)))
        try:
            yield {workload: _digest(cli, workload, "near") for workload in JOBS}
        finally:
            cli("down", "near", "--force")


def _digest(cli: Cli, workload: str, cluster: str) -> str:
    digest: str = cli.json("submit", workload, "--cluster", cluster, *JOBS[workload])["result_digest"]
    return digest


@pytest.mark.parametrize("workload", JOBS)
def test_a_workload_gives_what_it_gives_on_emulated_hosts_bit_for_bit(
    lab: Lab, local_digests: dict[str, str], workload: str
) -> None:
    assert _digest(lab.cli, workload, lab.name) == local_digests[workload]


def test_results_plots_logs_and_events_come_to_the_client(lab: Lab) -> None:
    lab.cli("submit", "independent-chains", "--name", "here", *JOBS["independent-chains"])
    folder = lab.cli.home / "jobs" / "here"
    assert {path.name for path in (folder / "results").iterdir()} == {"chains.nc", "summary.json"}
    assert (folder / "plots" / "trace.png").stat().st_size > 10_000
    assert {path.name for path in (folder / "logs").glob("*.log")} == {f"attempt-1.rank-{k}.log" for k in range(3)}
    assert lab.cli.events("here", "joined")
    assert "[2]" in lab.cli("logs", "here")
    remote = lab.hosts["h1"].path(f"/root/.spmd-launch/hosts/{lab.hosts['h1'].address}/jobs/here/results/summary.json")
    assert remote.read_bytes() == (folder / "results" / "summary.json").read_bytes()


def test_a_pruned_job_is_gone_from_the_head_too(lab: Lab) -> None:
    head = lab.hosts["h1"]
    record = head.path(f"/root/.spmd-launch/hosts/{head.address}/jobs/again")
    lab.cli("submit", "psum-check", "--name", "again")
    assert record.exists() and "there is a job of that name" in lab.cli(
        "submit", "psum-check", "--name", "again", code=2
    )
    lab.cli("jobs", "--prune", "again")
    assert not record.exists() and not (lab.cli.home / "jobs" / "again").exists()
    lab.cli("submit", "psum-check", "--name", "again")


def test_a_second_client_adopts_the_cluster_and_sees_its_jobs(lab: Lab) -> None:
    lab.cli("submit", "psum-check", "--name", "seen")
    with tempfile.TemporaryDirectory(prefix="slt-") as folder:
        other = Cli(Path(folder))
        assert "is up already" in other("up", str(lab.file), "--dry-run")
        assert not (other.home / "clusters").exists()
        assert "is up already" in other("up", str(lab.file))
        assert "seen" in other("jobs")
        assert "SUCCEEDED" in other("results", "seen")
        assert "READY" in other("status", lab.name) or "WARM" in other("status", lab.name)
        (other.home / "clusters").rename(other.home / "forgotten")  # that laptop is lost; the cluster is not
    assert lab.cli.json("submit", "psum-check")["state"] == "SUCCEEDED"


def test_a_client_that_has_another_job_of_the_name_has_both(lab: Lab) -> None:
    lab.cli("submit", "psum-check", "--name", "twin")
    theirs = lab.cli.job("twin")["spec"]["job_id"]
    with tempfile.TemporaryDirectory(prefix="slt-") as folder:
        other = Cli(Path(folder))
        mine = other.home / "jobs" / "twin"
        shutil.copytree(lab.cli.home / "jobs" / "twin", mine, ignore=shutil.ignore_patterns(".*"))
        record = lab.cli.job("twin")
        record = record | {"cluster": "near", "spec": record["spec"] | {"job_id": "0c"}}
        (mine / "job.json").write_text(json.dumps(record))
        before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
        other("up", str(lab.file))
        assert {job["name"] for job in other.json("jobs")} >= {"twin", f"twin.{theirs}"}
        assert (
            other.json("results", f"twin.{theirs}")["result_digest"] == lab.cli.json("results", "twin")["result_digest"]
        )
        assert "[2]" in other("logs", f"twin.{theirs}")
        assert other.job(f"twin.{theirs}")["cluster"] == lab.name
        out = " ".join(other("submit", "--resume", "twin", "--cluster", lab.name, code=2).split())
        assert f"the head of cluster {lab.name!r} has another job of that name on record: expected twin.0c" in out
        assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before
        other("jobs", "--prune", "twin")
        other("submit", "--resume", f"twin.{theirs}", "--cluster", lab.name)  # the head's was not meant
        assert before and not mine.exists()
        (other.home / "clusters").rename(other.home / "forgotten")


def test_down_waits_for_the_head_s_supervisor_that_is_started_again(lab: Lab) -> None:
    lab.cli("submit", "psum-check", "--set", "steps=1000000", "--set", "size=16", "--detach", "--name", "waits-for-it")
    lab.cli.wait_for(lambda: lab.cli.json("status", "waits-for-it")["state"] == "RUNNING")
    (supervisor,) = [process for process in lab.hosts["h1"].processes() if "ray::Supervisor" in process.argv[0]]
    os.kill(supervisor.pid, signal.SIGKILL)
    out = lab.cli("down", lab.name, code=2)
    assert "asking again for up to 30 s" in out and "waits-for-it" in out
    lab.cli("cancel", "waits-for-it")


def test_a_closed_laptop_loses_nothing(lab: Lab) -> None:
    lab.cli("submit", "sharded-mcmc", "--name", "long", "--detach", "--set", "num_draws=150", "--set", "num_warmup=20")
    way = lab.cli.record(lab.name)["run_folder"]
    tunnels = [process for process in psutil.process_iter() if any(way in word for word in command_of(process))]
    assert tunnels
    for process in tunnels:  # the client has no other process
        with suppress(psutil.NoSuchProcess):  # it has ended with another
            process.kill()
    lab.cli.wait_for(lambda: lab.cli.json("status", "long")["state"] in ("SUCCEEDED", "FAILED"), 240)
    assert lab.cli.json("results", "long")["state"] == "SUCCEEDED"


def test_nothing_is_written_outside_the_one_folder(lab: Lab) -> None:
    lab.cli("submit", "psum-check")
    for host in lab.hosts.hosts.values():
        written = host.run(["find", "/root", "-newer", BEFORE_UP, "-type", "f", "-not", "-path", "*/.spmd-launch/*"])
        assert not [line for line in written.stdout.splitlines() if "/.ssh/" not in line], written.stdout
        folder = host.path(f"/root/.spmd-launch/hosts/{host.address}")
        assert folder.stat().st_mode & 0o777 == 0o700  # another user of the host reads nothing of it


@pytest.mark.long
def test_the_one_slow_link_is_named_and_no_other(lab: Lab) -> None:
    one, other = lab.hosts["h2"], lab.hosts["h3"]
    one.slow_link(other, 40)
    settings = ("--set", "max_bytes=1000000", "--set", "seconds=60")
    found = lab.cli.json("doctor", lab.name, "--bandwidth", *settings, code=1)
    assert [slow["hosts"] for slow in found["slow"]] == [[one.address, other.address]]
    assert f"the link between {one.address} and {other.address}: " in found["problems"][0]
    assert "GB/s where the median is" in found["problems"][0]
