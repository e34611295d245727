"""Jobs that lose hosts on notice or without, and grow back: at commits, with the bits of a calm run."""

import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli, assert_nothing_left, cluster_file
from tests.metadata_server import Cloud, metadata_server

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NAME = "elastic"
EVERY = 200
STEPS = 2000
# Ridge regression on real collectives, whose bits do not depend on the number of hosts; as slow as a file says.
PACED = """
    import dataclasses
    import time
    from pathlib import Path
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P
    import ridge
    from workloads import checkpoint, spmd
    from workloads.result import Result, digest_arrays

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(ridge.Config):
        pace: str = ""

    def run(config: Config, context, resume=False):
        mesh = context.mesh({"data": jax.device_count()})
        x, y = spmd.shard(ridge.make_data(config, context.seed), mesh, P("data"))
        state = spmd.shard({"weights": np.zeros(8, np.float32), "loss": np.float32(0)}, mesh, P())
        found = checkpoint.resume(context, lambda step, metadata: state) if resume else None
        done = 0 if found is None else found.step
        state = state if found is None else found.state
        step, _ = context.compile("step", ridge.make_step(config, mesh), state, x, y)
        saver = checkpoint.Saver(context)
        for number in range(done + 1, config.num_steps + 1):
            state = step(state, x, y)
            time.sleep(float(Path(config.pace).read_text()))
            context.report(number, config.num_steps, loss=float(state["loss"]))
            state = context.inject(number, state)
            if context.save_due(number, config.num_steps):
                context.assert_replicas_equal(state, step=number)
                saver.save(number, state, {})
        saver.wait()
        digest = digest_arrays({"weights": np.asarray(state["weights"])})
        return Result(metrics={"loss": float(state["loss"])}, diagnostics={}, result_digest=digest)
"""


class Paced:
    """Submits the workload above, each job with a pace of its own."""

    def __init__(self, cli: Cli, folder: Path):
        self.cli = Cli(cli.home, folder)
        self.folder = folder

    def submit(self, job: str, pace_s: float, *more: str) -> None:
        self.pace(job, pace_s)
        self.cli(
            "submit", "./paced.py:run", "--cluster", NAME, "--name", job, "--checkpoint-every", str(EVERY),
            "--set", f"num_steps={STEPS}", "--set", f"pace={self.folder / job}", *more,
        )  # fmt: skip

    def pace(self, job: str, seconds: float) -> None:
        new = self.folder / f"{job}.new"
        new.write_text(str(seconds))
        new.replace(self.folder / job)

    def steps(self, job: str, kind: str) -> list[int]:
        return [event["step"] for event in self.cli.events(job, kind)]

    def step(self, job: str) -> int:
        ranks = self.cli.json("status", job)["ranks"]
        return min((rank["step"] for rank in ranks), default=0)

    def end(self, job: str) -> dict[str, Any]:
        """Lets it run to its end as fast as it can; returns its record."""
        self.pace(job, 0.0)
        self.cli.wait_for(lambda: self.cli.job(job)["state"] in ("SUCCEEDED", "FAILED"), 120.0)
        return self.cli.job(job)


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with metadata_server() as server:
        yield server


@pytest.fixture(scope="module")
def paced(cli: Cli, cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paced]:
    """Three hosts whose cloud has a metadata server; the first is held by a guest, jobs want the two others."""
    path = cluster_file(cli.home, NAME)
    path.write_text(f"{path.read_text()}spares: 1\nmin_hosts: 1\nenv: {{GCE_METADATA_HOST: '{cloud.netloc}'}}\n")
    folder = tmp_path_factory.mktemp("paced")
    (folder / "paced.py").write_text(textwrap.dedent(PACED))
    jobs = Paced(cli, folder)
    jobs.cli("new", "ridge")
    cli("up", str(path))
    record = cli.record(NAME)
    jobs.submit("elastic-calm", 0.0)
    jobs.submit("elastic-guest", 0.2, "--num-hosts", "1", "--detach")
    yield jobs
    cli("down", NAME, "--force")
    assert_nothing_left(record, cli.home)


def test_a_notice_saves_and_shrinks_and_the_job_grows_back(paced: Paced, cloud: Cloud) -> None:
    cli, job = paced.cli, "on-notice"
    paced.submit(job, 0.05, "--max-failures", "0", "--max-preemptions", "1", "--detach")
    cli.wait_for(lambda: paced.step(job) > 5)
    assert cli.job(job)["hosts"] == [f"{NAME}-1", f"{NAME}-2"]

    cloud.set(f"{NAME}-2", "maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    (left,) = cli.wait_for(lambda: cli.events(job, "moved"))
    assert left["hosts"] == [f"{NAME}-1"] and left["step"] == paced.steps(job, "checkpoint")[-1]
    assert left["step"] % EVERY, "it was saved because of the notice"
    assert left["message"] == f"leaves {NAME}-2 at step {left['step']}, before it goes: with 1 of 2 hosts"
    (notice,) = cli.events(job, "notice")
    assert (notice["host"], notice["notice"], notice["deadline"]) == (f"{NAME}-2", "maintenance", None)
    said = {host["name"]: host["notice"] for host in cli.json("status", NAME)["hosts"]}
    assert said[f"{NAME}-1"] is None and "TERMINATE_ON_HOST_MAINTENANCE" in said[f"{NAME}-2"]
    out = cli("submit", "psum-check", "--num-hosts", "1", "--cluster", NAME, "--no-wait", code=2)
    assert f"no free hosts for job 'psum-check-1': {NAME}-0 by elastic-guest, {NAME}-1 by on-notice, {NAME}-2:" in out

    cloud.set(f"{NAME}-2", "maintenance-event", "NONE")
    _, grown = cli.wait_for(lambda: len(moved := cli.events(job, "moved")) == 2 and moved)
    assert grown["hosts"] == [f"{NAME}-1", f"{NAME}-2"] and grown["step"] % EVERY == 0
    assert grown["message"] == f"grows back to 2 hosts at step {grown['step']}: host {NAME}-2 is back"
    cli.wait_for(lambda: paced.step(job) > grown["step"])

    for host in (f"{NAME}-1", f"{NAME}-2"):  # there is nowhere to go
        cloud.set(host, "preempted", "TRUE")
    notes = cli.wait_for(lambda: [note for note in cli.job(job)["notes"] if "stays on" in note])
    assert notes == [f"stays on {NAME}-1, {NAME}-2 until that is lost: it needs 1 host(s), 0 would be left"]
    saved = max(step for step in paced.steps(job, "checkpoint") if step % EVERY)
    assert saved > grown["step"], "it was saved because of the notice"
    os.kill(cli.job(job)["ranks"][1]["pid"], signal.SIGKILL)  # as a shutdown does at last
    (lost,) = cli.wait_for(lambda: cli.events(job, "attempt-failed"))
    assert lost["cause"] == "preempted" and f"rank 1 on host {NAME}-2 was lost" in lost["message"]
    assert "preemption: TRUE" in lost["message"] and "SIGKILL" in lost["message"]
    for host in (f"{NAME}-1", f"{NAME}-2"):
        cloud.set(host, "preempted", None)

    end = paced.end(job)
    assert (end["state"], end["attempt"], end["hosts"]) == ("SUCCEEDED", 4, [f"{NAME}-1", f"{NAME}-2"])
    from_steps = paced.steps(job, "resumed")
    assert from_steps[:2] == [left["step"], grown["step"]] and from_steps[2] >= saved
    assert end["result"]["result_digest"] == cli.job("elastic-calm")["result"]["result_digest"]


@pytest.mark.long
def test_a_job_that_has_lost_a_host_grows_when_another_is_free(paced: Paced) -> None:
    """Last: the host does not come back."""
    cli, job = paced.cli, "grows"
    paced.submit(job, 0.05, "--inject", f"kill-raylet host=1 step={EVERY + 5}", "--max-preemptions", "1", "--detach")
    cli.wait_for(lambda: cli.job(job)["attempt"] == 2 and paced.step(job))
    assert cli.job(job)["hosts"] == [f"{NAME}-1"]
    assert any(f"with 1 of 2 hosts, without {NAME}-2" in note for note in cli.job(job)["notes"])
    cli("cancel", "elastic-guest")
    (grown,) = cli.wait_for(lambda: cli.events(job, "moved"))
    assert grown["message"] == f"grows back to 2 hosts at step {grown['step']}: host {NAME}-0 is free"
    end = paced.end(job)
    assert (end["state"], end["attempt"], end["hosts"]) == ("SUCCEEDED", 3, [f"{NAME}-0", f"{NAME}-1"])
    assert paced.steps(job, "resumed")[-1] == grown["step"]
    assert end["result"]["result_digest"] == cli.job("elastic-calm")["result"]["result_digest"]
