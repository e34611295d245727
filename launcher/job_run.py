"""One job from its first host to its end: attempts, recovery, the record, and what the world is told of it."""

import asyncio
import contextlib
import dataclasses
import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ray.exceptions import RayError

from launcher.attempt import RankTask
from launcher.blobs import BlobStore, ship
from launcher.faults import Fault
from launcher.first_cause import FirstCause, first_cause
from launcher.gang import Gang, new_attempt_id
from launcher.host_pool import HostPool
from launcher.job import JobSpec, JobState, check_transition
from launcher.job_folder import JobFolder
from launcher.mirror import mirror_record
from launcher.outputs import collect_outputs, write_summary
from launcher.rank_process import Message
from launcher.recovery import AttemptEnd, Cause, OnDivergence, Policy, Retry, Stop, decide
from launcher.replay import open_case, settle
from workloads.errors import ConfigError
from workloads.fence import write_fence
from workloads.layout import Layout
from workloads.params import parse
from workloads.registry import find

MAX_PORTS_LOST = 5
HOST_RETURN_S = 4.0  # Ray starts a killed agent again in one to two seconds
LOOK_PERIOD_S = 1.0


class JobRun:
    """The live side of one job, in the supervisor.

    Args:
        spec: what was asked for.
        folder: its record; what is there of earlier attempts is continued.
        storage: where its checkpoints go.
        devices_per_host: of the cluster.
        min_hosts: the fewest hosts to go on with after a loss.
    """

    def __init__(self, spec: JobSpec, folder: JobFolder, storage: str, *, devices_per_host: int, min_hosts: int):
        record = folder.job()
        self.spec = spec
        self.folder = folder
        self.storage = storage
        self.devices_per_host = devices_per_host
        self.min_hosts = min(min_hosts, spec.num_hosts)
        self.policy = Policy(
            max_failures=spec.max_failures,
            max_preemptions=spec.max_preemptions,
            on_divergence=OnDivergence(spec.on_divergence),
        )
        self.state = JobState.QUEUED
        self.message = ""
        self.attempt: int = record.get("attempt", 0)
        self.hosts: list[str] = []
        self.gang: Gang | None = None
        self._suspects: dict[str, str] = {}  # the cluster's, once the job runs
        self.result: dict[str, Any] | None = None
        self.changed = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.cancel_reason = ""
        self.notes: list[str] = []
        self.checkpoint_step: int | None = record.get("checkpoint_step")
        self._ends = _ends_so_far(folder)
        self._failed_at: float | None = None
        self._verdicts: list[Message] = []
        self._submitted = time.monotonic() - max((event["at"] for event in folder.lines("events.jsonl")), default=0.0)
        self._times: dict[str, str] = {}
        self._mirroring: asyncio.Task[None] | None = None

    # -- what the world sees

    def snapshot(self) -> dict[str, Any]:
        """The job as `status JOB --json` gives it."""
        ranks = self.gang.ranks if self.gang else []
        return {
            "name": self.spec.name,
            "workload": self.spec.workload,
            "state": self.state,
            "attempt": self.attempt,
            "message": self.message,
            "notes": self.notes,
            "checkpoint_step": self.checkpoint_step,
            "hosts": self.hosts,
            "seconds": round(time.monotonic() - self._submitted, 3),
            "ranks": [
                {
                    "rank": rank.rank,
                    "host": rank.host,
                    "pid": rank.pid,
                    "phase": rank.phase,
                    "step": rank.step,
                    "total": rank.total,
                    "metrics": rank.metrics,
                }
                for rank in ranks
            ],
        }

    def enqueue(self) -> None:
        """Puts a job on record as waiting for hosts: a new one, or one that has ended and is resumed by hand."""
        self.event("state", state=JobState.QUEUED, message="")
        self.save()

    def cancel(self, reason: str) -> None:
        """Asks for the end; the state becomes CANCELLED when every process is gone."""
        self.cancel_reason = reason
        self.cancelled.set()

    # -- its life

    async def run(self, hosts: Sequence[str], pool: HostPool, blobs: BlobStore, lost: str = "") -> None:
        """Runs the job on these hosts to its end. Never raises for what a workload or a host did.

        Args:
            hosts: that the job holds, in the order of ranks.
            pool: where other hosts come from if one of these is lost.
            blobs: code and files to ship.
            lost: why the attempt that was running is gone, where a supervisor before this one had started it.
        """
        files = [(file.sha256, file.name) for file in self.spec.files.values()]
        self._suspects = pool.suspects
        ports_lost = 0
        following: Sequence[str] | None = hosts
        if lost:
            self.hosts = list(hosts)
            following = await self._recover(FirstCause(sentence=lost, cause=Cause.PREEMPTED), pool)
        while following is not None:
            self.hosts = list(following)
            agents = [pool.agents[host] for host in following]
            self.move(JobState.STARTING)
            try:
                await ship(blobs, agents, self.spec.code_digest, files)
                cause = await self._run_attempt(following, agents)
            except RayError as error:
                cause = FirstCause(sentence=f"a host was lost before the attempt began: {error}", cause=Cause.PREEMPTED)
            if self.state.ended:
                return
            if cause is not None:
                following = await self._recover(cause, pool)
            elif (ports_lost := ports_lost + 1) == MAX_PORTS_LOST:
                message = f"rank 0 lost the race for its coordinator's port {MAX_PORTS_LOST} times in a row"
                self.end(JobState.FAILED, message)
                return

    async def _recover(self, cause: FirstCause, pool: HostPool) -> Sequence[str] | None:
        """Decides what comes after a bad end; returns the hosts of the next attempt, or None if there is none."""
        ranks = self.gang.ranks if self.gang else []
        end = AttemptEnd(cause=cause.cause, step=min((rank.step for rank in ranks), default=0), suspects=cause.suspects)
        self._ends.append(end)
        self._failed_at = time.monotonic()
        self.event(
            "attempt-failed", attempt=self.attempt, cause=end.cause, step=end.step, message=cause.sentence,
            details=cause.details, suspects=list(end.suspects),
        )  # fmt: skip
        self.message = str(cause)
        self.move(JobState.RECOVERING)
        self._suspect(cause.suspects, cause.sentence)
        waits = ""
        while not self.cancelled.is_set():
            available = await pool.available(self.spec.name, () if waits else self.hosts, HOST_RETURN_S)
            decision = decide(
                self._ends,
                policy=self.policy,
                hosts=self.hosts,
                available=available,
                sizes=self._sizes(),
                waited_s=time.monotonic() - self._failed_at,
            )
            if isinstance(decision, Retry):
                where = self._where_from(len(decision.hosts))
                self.note(f"{cause.sentence}; {where}{f', {decision.why}' if decision.why else ''}")
                pool.take(self.spec.name, decision.hosts)
                return decision.hosts
            if isinstance(decision, Stop):
                self.end(
                    JobState.FAILED,
                    str(FirstCause(sentence=f"{cause.sentence}\n{decision.why}", details=cause.details)),
                )
                return None
            if decision.why != waits:
                waits = decision.why
                self.note(f"{cause.sentence}; {waits}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.cancelled.wait(), LOOK_PERIOD_S)
        self.end(JobState.CANCELLED, self.cancel_reason)
        return None

    def _where_from(self, num_hosts: int) -> str:
        number = f"attempt {self.attempt + 1}"
        replay = self._replay(num_hosts)
        goal = f"; it replays to step {replay['step']}, to tell which copy was wrong" if replay else ""
        if self.checkpoint_step is None:
            return f"{number} starts from step 0: no checkpoint{goal}"
        return f"{number} restarts from step {self.checkpoint_step}{goal}"

    def _replay(self, num_hosts: int) -> dict[str, Any] | None:
        """What the next attempt is asked to tell of a step that it computes again."""
        if self.policy.on_divergence is not OnDivergence.REPLAY:
            return None
        case = open_case(self.folder.lines("events.jsonl"))
        return case.request(num_hosts=num_hosts, checkpoint_step=self.checkpoint_step or 0) if case else None

    def _settle(self, digests: Mapping[str, str]) -> dict[str, Any]:
        """Tells what the replayed step shows of the copies that differed; returns it for the record."""
        case = open_case(self.folder.lines("events.jsonl"))
        assert case is not None, "no rank tells what was not asked"
        finding = settle(case, digests)
        self._ends[-1] = dataclasses.replace(self._ends[-1], suspects=finding.suspects)
        self._suspect(finding.suspects, finding.sentence)
        self.note(finding.sentence)
        return {"suspects": list(finding.suspects), "message": finding.sentence}

    def _suspect(self, hosts: Sequence[str], why: str) -> None:
        self._suspects |= dict.fromkeys(hosts, f"job {self.spec.name}: {why.splitlines()[0]}")

    def _sizes(self) -> list[int]:
        """Numbers of hosts that the job may run on: those that its parameters fit."""
        return [self.spec.num_hosts, *(n for n in range(self.min_hosts, self.spec.num_hosts) if self._fits(n))]

    def _fits(self, num_hosts: int) -> bool:
        try:
            files = {param: file.name for param, file in self.spec.files.items()}
            config: Any = parse(find(self.spec.workload).config_class(), {**self.spec.settings, **files})
            config.check(Layout(num_hosts=num_hosts, devices_per_host=self.devices_per_host))
        except ConfigError:
            return False
        return True

    async def _run_attempt(self, hosts: Sequence[str], agents: Sequence[Any]) -> FirstCause | None:
        """One attempt; returns why it ended badly, or None if it did not, or if only the port was lost."""
        self.attempt += 1
        tasks = self._tasks(len(hosts))
        attempt_id = tasks[0].attempt_id
        await asyncio.to_thread(write_fence, self.storage, self.attempt, attempt_id)
        gang = self.gang = Gang(hosts, agents, tasks, self._hear)
        self.event("attempt", attempt=self.attempt, attempt_id=attempt_id, hosts=list(hosts))
        self.save()
        self.mirror()
        running = asyncio.ensure_future(gang.run())
        cancelled = asyncio.ensure_future(self.cancelled.wait())
        joined = asyncio.ensure_future(self._when_joined(gang, agents))
        try:
            await asyncio.wait([running, cancelled], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not running.done():
                running.cancel()
            await asyncio.wait([running])
            joined.cancel()
            cancelled.cancel()
        cause = await self._conclude(gang, agents, attempt_id)
        for agent in agents:  # not waited for: a host that is gone has nothing left to remove
            agent.forget.remote(attempt_id)
            agent.fill_standby.remote()
        return cause

    async def _when_joined(self, gang: Gang, agents: Sequence[Any]) -> None:
        await gang.joined.wait()
        self.message = ""
        self.move(JobState.RUNNING)
        for agent in agents:
            agent.fill_standby.remote()

    async def _conclude(self, gang: Gang, agents: Sequence[Any], attempt_id: str) -> FirstCause | None:
        if self.cancelled.is_set():
            self.end(JobState.CANCELLED, self.cancel_reason)
        elif gang.port_lost and not gang.bad_ends:
            self.event("port-lost", attempt=self.attempt)
            self.move(JobState.RECOVERING)
        elif gang.succeeded:
            await self._accept(gang, agents, attempt_id)
        else:
            return first_cause(gang.bad_ends)
        return None

    async def _accept(self, gang: Gang, agents: Sequence[Any], attempt_id: str) -> None:
        """Accepts the result, if all ranks have the same one."""
        results = [rank.result or {} for rank in gang.ranks]
        digests = {rank.rank: result["result_digest"] for rank, result in zip(gang.ranks, results, strict=True)}
        if len(set(digests.values())) > 1:
            listed = ", ".join(f"rank {rank} on {gang.ranks[rank].host}: {d[:16]}" for rank, d in digests.items())
            self.end(JobState.FAILED, f"the ranks do not have the same result, so none is accepted ({listed})")
            return
        await collect_outputs(agents[0], attempt_id, self.folder.path)
        self.result = write_summary(self.folder.path, results[0], self._verdicts)
        self.end(JobState.SUCCEEDED, "")

    def _tasks(self, num_ranks: int) -> list[RankTask]:
        attempt_id = new_attempt_id(self.spec.name, self.attempt)
        replay = self._replay(num_ranks)
        faults = [Fault.from_json(fault) for fault in self.spec.faults]
        return [
            RankTask(
                attempt_id=attempt_id,
                job=self.spec.name,
                attempt=self.attempt,
                resume=self.attempt > 1,
                rank=rank,
                num_ranks=num_ranks,
                workload=self.spec.workload,
                settings=self.spec.settings,
                files={param: (file.sha256, file.name) for param, file in self.spec.files.items()},
                seed=self.spec.seed,
                checkpoint_every=self.spec.checkpoint_every,
                check_every=self.spec.check_every,
                keep=self.spec.keep,
                program_barrier=self.spec.program_barrier,
                faults=[fault.to_json() for fault in faults if fault.due(rank, self.attempt, self.devices_per_host)],
                jax_config=jax_config(self.spec.config),
                code_digest=self.spec.code_digest,
                storage=self.storage,
                watch_launches=self.spec.watch_launches,
                replay=replay,
            )
            for rank in range(num_ranks)
        ]

    # -- the record

    def move(self, state: JobState) -> None:
        """Takes one step of the state machine, on disk first."""
        if state == self.state:
            return
        check_transition(self.state, state)
        self.state = state
        self._times[state.lower()] = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
        self.event("state", state=state, message=self.message)
        self.save()
        self.changed.set()

    def end(self, state: JobState, message: str) -> None:
        self.message = message
        self.move(state)
        self.folder.close()
        self.mirror()

    def save(self) -> None:
        self.folder.write_job(
            self.folder.job() | self.snapshot() | {"times": self._times, "storage": self.storage, "result": self.result}
        )

    def mirror(self) -> None:
        """Starts copying the record to the storage, unless a copy is under way: the next one will have it all."""
        if self._mirroring is None or self._mirroring.done():
            self._mirroring = asyncio.get_running_loop().create_task(self._mirror())

    async def _mirror(self) -> None:
        try:
            await asyncio.to_thread(mirror_record, self.folder, self.storage)
        except OSError as error:  # the job needs no copy of its record to go on
            self.event("mirror-failed", why=str(error))

    def event(self, kind: str, **details: Any) -> None:
        self.folder.append("events.jsonl", {"at": self._now(), "type": kind, **details})

    def note(self, text: str) -> None:
        """Something that a person who watches the job should read; one line for the live display."""
        self.notes.append(text)
        self.event("note", message=text)
        self.changed.set()

    def _now(self) -> float:
        return round(time.monotonic() - self._submitted, 4)

    def _hear(self, rank: int, event: Message) -> None:
        kind = event["type"]
        if kind == "log":
            self.folder.append_text(f"logs/attempt-{self.attempt}.rank-{rank}.log", event["text"])
        elif kind == "report":
            if self._failed_at is not None:
                self.event("recovered", attempt=self.attempt, seconds=round(time.monotonic() - self._failed_at, 3))
                self._failed_at = None
            where = {"at": self._now(), "rank": rank, "step": event["step"], "total": event["total"]}
            self.folder.append("metrics.jsonl", where | event["metrics"])
        else:
            details = {key: value for key, value in event.items() if key not in ("type", "at")}
            if kind == "result":
                details.pop("diagnostics", None)  # they are in results/summary.json
            if kind == "checkpoint" and rank == 0:
                self.checkpoint_step = event["step"]
                self.save()
                self.mirror()
            if kind == "replayed":
                details |= self._settle(event["digests"])
            if kind == "verdict":
                self._verdicts.append({"rank": rank, **details})
            self.event(kind, rank=rank, **details)
        self.changed.set()


def _ends_so_far(folder: JobFolder) -> list[AttemptEnd]:
    """How earlier attempts ended, since the job was submitted or last resumed by hand."""
    ends: list[AttemptEnd] = []
    for event in folder.lines("events.jsonl"):
        if event["type"] == "resumed-by-hand":
            ends.clear()
        if event["type"] == "attempt-failed":
            ends.append(AttemptEnd(cause=Cause(event["cause"]), step=event["step"], suspects=tuple(event["suspects"])))
        if event["type"] == "replayed":
            ends[-1] = dataclasses.replace(ends[-1], suspects=tuple(event["suspects"]))
    return ends


def jax_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """JAX options that follow from the parameters every workload has: `x64` and `precision`."""
    precision = config.get("precision", "default")
    return {
        "jax_enable_x64": bool(config.get("x64", False)),
        "jax_default_matmul_precision": None if precision == "default" else precision,
    }
