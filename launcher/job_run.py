"""One job from its first host to its end: attempts, the record, and what the world is told of it."""

import asyncio
import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.attempt import RankTask
from launcher.blobs import BlobStore, ship
from launcher.first_cause import first_cause
from launcher.gang import Gang, new_attempt_id
from launcher.job import JobSpec, JobState, check_transition
from launcher.job_folder import JobFolder
from launcher.outputs import collect_outputs, write_summary
from launcher.rank_process import Message

MAX_PORTS_LOST = 5


class JobRun:
    """The live side of one job, in the supervisor.

    Args:
        spec: what was asked for.
        folder: its record.
        storage: where its checkpoints go.
    """

    def __init__(self, spec: JobSpec, folder: JobFolder, storage: str):
        self.spec = spec
        self.folder = folder
        self.storage = storage
        self.state = JobState.QUEUED
        self.message = ""
        self.attempt = 0
        self.hosts: list[str] = []
        self.gang: Gang | None = None
        self.result: dict[str, Any] | None = None
        self.changed = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.cancel_reason = ""
        self._verdicts: list[Message] = []
        self._submitted = time.monotonic()
        self._times: dict[str, str] = {}

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

    def cancel(self, reason: str) -> None:
        """Asks for the end; the state becomes CANCELLED when every process is gone."""
        self.cancel_reason = reason
        self.cancelled.set()

    # -- its life

    async def run(self, hosts: Sequence[str], agents: Sequence[Any], blobs: BlobStore) -> None:
        """Runs the job on these hosts to its end. Never raises for what a workload or a host did."""
        self.hosts = list(hosts)
        self.move(JobState.STARTING)
        files = [(file.sha256, file.name) for file in self.spec.files.values()]
        await ship(blobs, agents, self.spec.code_digest, files)
        for _ in range(MAX_PORTS_LOST):
            await self._run_attempt(hosts, agents)
            if self.state.ended:
                return
            self.move(JobState.STARTING)
        self.end(JobState.FAILED, f"rank 0 lost the race for its coordinator's port {MAX_PORTS_LOST} times in a row")

    async def _run_attempt(self, hosts: Sequence[str], agents: Sequence[Any]) -> None:
        self.attempt += 1
        tasks = self._tasks(len(hosts))
        gang = self.gang = Gang(hosts, agents, tasks, self._hear)
        self.event("attempt", attempt=self.attempt, attempt_id=tasks[0].attempt_id, hosts=list(hosts))
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
        await self._conclude(gang, agents, tasks[0].attempt_id)
        await asyncio.gather(
            *(agent.forget.remote(tasks[0].attempt_id) for agent in agents),
            *(agent.fill_standby.remote() for agent in agents),
            return_exceptions=True,  # a host that is gone has nothing left to remove
        )

    async def _when_joined(self, gang: Gang, agents: Sequence[Any]) -> None:
        await gang.joined.wait()
        self.move(JobState.RUNNING)
        for agent in agents:
            agent.fill_standby.remote()

    async def _conclude(self, gang: Gang, agents: Sequence[Any], attempt_id: str) -> None:
        if self.cancelled.is_set():
            self.end(JobState.CANCELLED, self.cancel_reason)
        elif gang.port_lost and not gang.bad_ends:
            self.event("port-lost", attempt=self.attempt)
            self.move(JobState.RECOVERING)
        elif gang.succeeded:
            await self._accept(gang, agents, attempt_id)
        else:
            self.end(JobState.FAILED, first_cause(gang.bad_ends))

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
        return [
            RankTask(
                attempt_id=attempt_id,
                job=self.spec.name,
                rank=rank,
                num_ranks=num_ranks,
                workload=self.spec.workload,
                settings=self.spec.settings,
                files={param: (file.sha256, file.name) for param, file in self.spec.files.items()},
                seed=self.spec.seed,
                checkpoint_every=self.spec.checkpoint_every,
                check_every=self.spec.check_every,
                jax_config=jax_config(self.spec.config),
                code_digest=self.spec.code_digest,
                storage=self.storage,
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

    def save(self) -> None:
        self.folder.write_job(
            self.folder.job() | self.snapshot() | {"times": self._times, "storage": self.storage, "result": self.result}
        )

    def event(self, kind: str, **details: Any) -> None:
        self.folder.append("events.jsonl", {"at": self._now(), "type": kind, **details})

    def _now(self) -> float:
        return round(time.monotonic() - self._submitted, 4)

    def _hear(self, rank: int, event: Message) -> None:
        kind = event["type"]
        if kind == "log":
            self.folder.append_text(f"logs/attempt-{self.attempt}.rank-{rank}.log", event["text"])
        elif kind == "report":
            where = {"at": self._now(), "rank": rank, "step": event["step"], "total": event["total"]}
            self.folder.append("metrics.jsonl", where | event["metrics"])
        else:
            details = {key: value for key, value in event.items() if key not in ("type", "at")}
            if kind == "result":
                details.pop("diagnostics", None)  # they are in results/summary.json
            if kind == "verdict":
                self._verdicts.append({"rank": rank, **details})
            self.event(kind, rank=rank, **details)
        self.changed.set()


def jax_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """JAX options that follow from the parameters every workload has: `x64` and `precision`."""
    precision = config.get("precision", "default")
    return {
        "jax_enable_x64": bool(config.get("x64", False)),
        "jax_default_matmul_precision": None if precision == "default" else precision,
    }
