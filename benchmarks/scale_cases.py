"""What the supervisor and `up` compute for N hosts, without hosts: each case makes its inputs and returns one step.

The step is everything of its kind for all N hosts: one look, one round of news, one decision. What it returns is what
would be sent or written, if anything is. A step that is to be cheap for each host takes a time in proportion to N.
"""

import asyncio
import itertools
import json
import pickle
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cluster.host_facts import MachineFacts, problems
from launcher.attempt import HostFacts, HostNews, RankStatus, tasks_for
from launcher.certificates import Authority, new_request
from launcher.first_cause import first_cause
from launcher.gang_watch import GangWatch
from launcher.host_pool import HostPool
from launcher.job import JobSpec, RankEnd
from launcher.job_folder import JobFolder
from launcher.job_queue import Waiting, next_to_start
from launcher.job_record import JobRecord
from launcher.launch_ledger import LaunchLedger
from launcher.mirror import mirror_record
from launcher.parity import compare
from launcher.recovery import AttemptEnd, Cause, Policy, decide
from launcher.timeline import RankProgress
from launcher.watchdog import judge

Step = Callable[[], Any]
REPORTS = 10  # a rank, in the copy of the record


def names(num_hosts: int) -> list[str]:
    return [f"host-{number}" for number in range(num_hosts)]


def progress(step: int) -> dict[str, Any]:
    """What a rank says of where it is, ten launches a step."""
    return {
        "type": "progress", "moves": 4, "reports": step, "detours": 0, "events": 4 + step, "phase": "run",
        "step": step, "total": 1000,
        "launches": 10 * step, "program": "train", "launch_hash": f"{step:064x}",
        "tail": [["train #0123456789ab", 10]], "since": 0.1, "own_s": 0.2 * step, "usual_s": 1.0, "longest_s": 1.2,
    }  # fmt: skip


def report(step: int) -> dict[str, Any]:
    said = progress(step)
    same = {key: said[key] for key in ("step", "total", "launches", "launch_hash", "tail")}
    return {"type": "report", "metrics": {"loss": 1 / step}, **same}


def news(step: int) -> HostNews:
    """An agent's answer: a report, a line of log, and where the rank is."""
    log = {"type": "log", "text": f"step {step} of 1000: nothing was computed\n", "at": 1.0}
    return HostNews(events=[{**report(step), "at": 1.0}, log], progress=progress(step), silent_s=0.1, state="S")


def judging(num_hosts: int, folder: Path) -> Step:
    """Once a second: who is stuck, silent or slow; one is slow."""
    ranks = [
        RankProgress(
            rank=rank, host=host, phase="run", step=5, total=9, moves=9, launches=50, stood_s=0.5, usual_s=1.0,
            own_step_s=2.0 if rank == 1 else 0.5 + 1e-6 * rank, own_share=0.9,
        )
        for rank, host in enumerate(names(num_hosts))
    ]  # fmt: skip
    return lambda: judge(ranks)


def looking(num_hosts: int, folder: Path) -> Step:
    """The same with the timelines that it is judged by."""
    watch = GangWatch(names(num_hosts))
    for rank in range(num_hosts):
        watch.hear(rank, news(3))
    return watch.look


def hearing(num_hosts: int, folder: Path) -> Step:
    """An answer of each agent goes into its rank's timeline."""
    watch, steps = GangWatch(names(num_hosts)), itertools.count(1)

    def step() -> bytes:
        said = news(next(steps))
        for rank in range(num_hosts):
            watch.hear(rank, said)
        return num_hosts * pickle.dumps(said)

    return step


def comparing_launches(num_hosts: int, folder: Path) -> Step:
    """Each rank's report, and where it is, go into the ledger."""
    ledger, steps = LaunchLedger(num_hosts), itertools.count(1)

    def step() -> None:
        number = next(steps)
        said, where = report(number), progress(number)
        for rank in range(num_hosts):
            ledger.hear_report(rank, said)
            ledger.hear(rank, where["launches"], where["launch_hash"], where["tail"])
            ledger.hear_progress(rank, where["reports"], where["launches"])
        assert not ledger.difference, ledger.difference

    return step


def record(num_hosts: int, folder: Path) -> JobRecord:
    """A job of so many ranks, on disk."""
    spec = JobSpec(
        name="scale", job_id="scale.1", workload="psum-check", settings={}, config={}, num_hosts=num_hosts,
        code_digest="0" * 64, files={}, versions={}, submitted="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    path = folder / f"scale-{time.monotonic_ns()}"
    for part in ("logs", "results", "plots"):
        (path / part).mkdir(parents=True)
    JobFolder(path).write_job({"name": spec.name, "spec": spec.to_json()})
    made = JobRecord(spec, JobFolder(path), str(folder / "storage"))
    made.hosts = names(num_hosts)
    made.ranks = [
        RankStatus(rank, host, pid=100_000 + rank, phase="run", step=500, total=1000, metrics={"loss": 0.123456})
        for rank, host in enumerate(made.hosts)
    ]
    return made


def recording(num_hosts: int, folder: Path) -> Step:
    """Each rank's report and its line of log are written to the job's folder."""
    made, steps = record(num_hosts, folder), itertools.count(1)

    def step() -> None:
        events = news(next(steps)).events
        for rank in range(num_hosts):
            for event in events:
                made.hear(rank, dict(event))
        made.close()

    return step


def saving(num_hosts: int, folder: Path) -> Step:
    """At each checkpoint and change of state: `job.json`."""
    return record(num_hosts, folder).save


def copying(num_hosts: int, folder: Path) -> Step:
    """At each checkpoint: the record's copy in the storage, of ten reports a rank."""
    made = record(num_hosts, folder)
    for step in range(1, REPORTS + 1):
        for rank in range(num_hosts):
            made.hear(rank, report(step))
    made.close()
    return lambda: mirror_record(made.folder, made.storage, set())


def status(num_hosts: int, folder: Path) -> Step:
    """What `status JOB` is sent."""
    made = record(num_hosts, folder)
    return lambda: json.dumps(made.snapshot()).encode()


def display(num_hosts: int, folder: Path) -> Step:
    """What each live display is sent, up to ten times a second."""
    made = record(num_hosts, folder)
    return lambda: json.dumps(made.glance()).encode()


def deciding(num_hosts: int, folder: Path) -> Step:
    """A host is lost: which hosts the next attempt gets; there is a spare."""
    hosts = [*names(num_hosts), "spare"]
    ends = [AttemptEnd(cause=Cause.PREEMPTED, step=5)]
    return lambda: decide(
        ends, policy=Policy(), hosts=hosts[:-1], available=hosts[1:], sizes=range(num_hosts // 2, num_hosts + 1)
    )


def finding_the_cause(num_hosts: int, folder: Path) -> Step:
    """All ranks end badly, one by a signal and the rest by what that does to them."""
    error = {"type": "XlaRuntimeError", "message": "a peer is gone", "traceback": "Traceback"}
    ends = [
        RankEnd(rank=rank, host=host, order=rank, phase="run", error=error)
        for rank, host in enumerate(names(num_hosts))
    ]
    ends[-1] = RankEnd(rank=num_hosts - 1, host=f"host-{num_hosts - 1}", order=num_hosts - 1, phase="run", signal=9)
    return lambda: first_cause(ends)


def choosing_hosts(num_hosts: int, folder: Path) -> Step:
    """A job of all hosts is the next to start."""
    pool = HostPool(dict.fromkeys(names(num_hosts)))

    def step() -> None:
        chosen = next_to_start([Waiting("a", num_hosts)], pool.order(), pool.held)
        assert chosen is not None
        hosts = pool.in_rank_order(chosen[1])
        pool.take("a", hosts)
        pool.release("a")

    return step


class Answering:
    """The agent of a host that is there."""

    @property
    def clock(self) -> "Answering":
        return self

    async def remote(self) -> float:
        return 0.0


def asking_hosts(num_hosts: int, folder: Path) -> Step:
    """Before each attempt but the first: which hosts answer."""
    hosts = names(num_hosts)
    pool = HostPool({host: Answering() for host in hosts})
    return lambda: asyncio.run(pool.available("a", hosts, 4.0))


def making_tasks(num_hosts: int, folder: Path) -> Step:
    """What the ranks of an attempt are told."""
    spec = record(num_hosts, folder).spec
    environments: list[dict[str, str]] = [{} for _ in range(num_hosts)]
    return lambda: pickle.dumps(
        tasks_for(
            spec,
            1,
            "s",
            environments=environments,
            devices_per_host=4,
            own_disk=False,
            replay=None,
            secrets={},
            profile=None,
        )
    )


def signing(num_hosts: int, folder: Path) -> Step:
    """The certificates of an attempt."""
    authority, (_, request) = Authority.open(folder, f"c{num_hosts}"), new_request()
    return lambda: [authority.issue(request, "a.1.0", rank) for rank in range(num_hosts)]


def comparing_hosts(num_hosts: int, folder: Path) -> Step:
    """Once in `up`: do all hosts have the same?"""
    facts = [
        HostFacts(
            host=host, versions={"jax": "0.12", "numpy": "2.4", "ray": "2.56"}, code_digest="0" * 64,
            flags={"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}, num_devices=4, device_kind="cpu", hostname=host,
            resolves_to="10.0.0.1", clock=0.0,
        )
        for host in names(num_hosts)
    ]  # fmt: skip
    return lambda: compare(facts, 4)


def judging_machines(num_hosts: int, folder: Path) -> Step:
    """Once in `up` over ssh: can these machines be hosts?"""
    packages = {"ray": "2.56", "jax": "0.12", "jaxlib": "0.12", "numpy": "2.4"}
    facts = [
        MachineFacts(
            host=host, home="/h", address=host, hostname=host, resolves_to=(host,), clock_skew_s=0.0,
            free_bytes=2**40, free_shm_bytes=2**40, writable="", machine="x86_64", system="Linux",
            python={"version": "3.12", "packages": packages}, uv="", environments={}, cluster=None, processes=(),
            container=None, others=(),
        )
        for host in names(num_hosts)
    ]  # fmt: skip
    return lambda: problems(facts)


CASES: Mapping[str, Callable[[int, Path], Step]] = {
    "once a second: watchdog.judge": judging,
    "once a second: GangWatch.look": looking,
    "a round of news: timelines": hearing,
    "a round of news: launch ledger": comparing_launches,
    "a round of news: record": recording,
    "a live display: glance": display,
    "status: snapshot": status,
    "a checkpoint: job.json": saving,
    "a checkpoint: copy of the record": copying,
    "recovery: who answers": asking_hosts,
    "recovery: decide": deciding,
    "recovery: first cause": finding_the_cause,
    "an attempt: choose hosts": choosing_hosts,
    "an attempt: tasks": making_tasks,
    "an attempt: certificates": signing,
    "up: compare hosts": comparing_hosts,
    "up: problems of machines": judging_machines,
}
