"""The end of a cluster by its own doing, on the head: its jobs, what costs money, every process on every host."""

import asyncio
import contextlib
import dataclasses
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ray.exceptions import RayError

from cluster.delete_from_head import PAUSES_S, delete_what_costs
from cluster.farewell import Farewell
from cluster.holder import REJOIN_TIMEOUT_S
from cluster.leave import leave
from cluster.record import Cluster
from cluster.spec import ClusterSpec
from launcher.interactive import WORKLOAD
from launcher.job import JobState
from launcher.job_record import JobRecord
from launcher.job_run import JobRun
from launcher.storage import is_on_head
from launcher.went_down import keep_in_storage

LEAVE_TIMEOUT_S = 20.0
READ_S = 3.0  # for who follows a job to copy its record
MIRROR_TIMEOUT_S = 120.0
COMMIT_PERIOD_S = 0.1

Cancel = Callable[[str, str], Awaitable[Any]]


class SelfDown:
    """Ends the cluster that it is a part of.

    Args:
        cluster: on whose head this runs.
        agents: Ray handles by host.
        why: it ends, as `launcher.limits.because` says it.

    Attributes:
        why: it ends.
        problem: why its end does not get on; ''.
    """

    def __init__(self, cluster: Cluster, agents: Mapping[str, Any], why: str):
        self.why = why
        self.problem = ""
        self._cluster = cluster
        self._agents = agents

    async def end_jobs(self, jobs: Sequence[JobRun], cancel: Cancel, until: float) -> None:
        """Cancels all jobs that have not ended; those that run when they have saved a last checkpoint.

        Args:
            jobs: oldest first.
            cancel: ends a job by its name, and says why.
            until: when at the latest, by the monotonic clock.
        """
        queued = [job for job in jobs if job.record.state is JobState.QUEUED]
        for job in reversed(queued):  # at once, so that none starts when another ends
            await self._cancel(job, cancel)
        await asyncio.gather(*(self._save_and_cancel(job, cancel, until) for job in jobs if job not in queued))

    async def _save_and_cancel(self, job: JobRun, cancel: Cancel, until: float) -> None:
        before = job.record.checkpoint_step
        if job.moves is not None:
            job.moves.ask_for_save()
        while not job.record.state.ended and time.monotonic() < until:
            newest = job.record.checkpoint_step
            if newest is not None and (before is None or newest > before):
                break
            before = newest  # an attempt that has just begun may go on from an older one
            await asyncio.sleep(COMMIT_PERIOD_S)
        await self._cancel(job, cancel)

    async def _cancel(self, job: JobRun, cancel: Cancel) -> None:
        if not job.record.state.ended:
            what = way_on(job.record, self._cluster.spec)
            await cancel(job.spec.name, f"its cluster took itself down, {self.why}; {what}")

    async def finish(self, records: Sequence[JobRecord]) -> None:
        """Ends the cluster, and with it this process.

        Args:
            records: of all jobs since it came up, which have ended.
        """
        with contextlib.suppress(TimeoutError):
            copies = asyncio.gather(*(record.mirrored() for record in records), return_exceptions=True)
            await asyncio.wait_for(copies, MIRROR_TIMEOUT_S)
        jobs = {
            record.spec.name: {"job_id": record.spec.job_id, "state": record.state, "message": record.message}
            for record in records
        }
        farewell = Farewell.now(self._cluster, self.why, jobs)
        await asyncio.sleep(READ_S)
        if self._cluster.spec.provider.is_paid:
            await asyncio.to_thread(keep_in_storage, farewell, self._cluster.spec)
            await self._again_and_again(lambda: delete_what_costs(self._cluster.name))
        left = await self._end_other_machines()
        with contextlib.suppress(OSError):  # a full disk must not keep the cluster up
            dataclasses.replace(farewell, left=tuple(left)).prepare()
        await self._again_and_again(self._leave)

    async def _again_and_again(self, act: Callable[[], str]) -> None:
        """Does it until it says no problem, which `status` tells meanwhile: nobody else would."""
        tries = 0
        while problem := await asyncio.to_thread(act):
            self.problem = problem
            await asyncio.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            tries += 1
        self.problem = ""

    def _leave(self) -> str:
        try:
            leave(self._cluster.name, self._cluster.cluster_id)
        except (OSError, subprocess.SubprocessError) as error:
            return f"its processes could not be ended: {error}"
        return ""

    async def _end_other_machines(self) -> list[str]:
        if self._cluster.spec.provider.shares_disk:
            return []  # all hosts are this machine
        others = [host.name for host in self._cluster.hosts[1:]]
        return [line for line in await asyncio.gather(*(self._end_machine(host) for host in others)) if line]

    async def _end_machine(self, host: str) -> str:
        asked = self._agents[host].leave.remote(self._cluster.name, self._cluster.cluster_id)
        try:
            await asyncio.wait_for(asked, LEAVE_TIMEOUT_S)
        except (RayError, TimeoutError) as error:
            return (
                f"host {host} could not be told ({type(error).__name__}): what runs there ends by itself, "
                f"{REJOIN_TIMEOUT_S / 60:g} minutes after it has lost the head; `spmd-launch down` removes the rest"
            )
        return ""


def way_on(record: JobRecord, spec: ClusterSpec, *, before: bool = False) -> str:
    """How a job that is cancelled with its cluster can go on.

    Args:
        record: of the job.
        spec: of the cluster.
        before: whether it runs yet, and may still save checkpoints.
    """
    if record.spec.workload == WORKLOAD:
        return "the arrays of this gang are lost with it"
    on_head = is_on_head(spec, record.storage)
    if on_head and spec.provider.is_paid:
        return "its checkpoints are on the head's own disk, which is deleted with it: nothing of the job is left"
    where = f"on cluster {spec.name} when it is up again" if on_head else "on any cluster that reaches its storage"
    if before:
        start = "goes on from its last checkpoint"
    else:
        start = "starts it again" if record.checkpoint_step is None else f"goes on from step {record.checkpoint_step}"
    return f"`spmd-launch submit --resume {record.spec.name}` {start}, {where}"
