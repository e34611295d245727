"""Watches, on the head, whether the cluster has reached a limit of its file; warns before, and ends it then."""

import asyncio
import contextlib
import dataclasses
import datetime
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any

from cluster.farewell import forget
from cluster.record import Cluster, write_json
from launcher import last_guard
from launcher.errors import UserError
from launcher.job import JobState
from launcher.job_run import JobRun
from launcher.limits import Clock, End, because, limits_of, warning
from launcher.protocol import Message
from launcher.self_down import Cancel, SelfDown, way_on

PERIOD_S = 0.5
RETRY_S = 10.0
START_S = 600.0  # an `up` that takes longer has been given up by its client
# Requests that are something to do, and that a cluster which goes down refuses; others only look.
WORK = ("submit", "gang", "blob", "exec", "inspect", "lock", "mend", "take-in")


class CostGuard:
    """Lives in the supervisor. What it counts from is kept on the disk: a supervisor that is started again goes on.

    Args:
        cluster: that it guards.
        agents: Ray handles by host.
        jobs: all since the cluster came up, oldest first; those that come are seen here.
        cancel: ends a job by its name, and says why.
    """

    def __init__(self, cluster: Cluster, agents: Mapping[str, Any], jobs: Mapping[str, JobRun], cancel: Cancel):
        self._spec = cluster.spec
        self._cluster = cluster
        self._agents = agents
        self._jobs = jobs
        self._cancel = cancel
        self._path = cluster.folder / last_guard.CLOCK
        self._limits = limits_of(cluster.spec)
        self._under_way = 0
        self._self_down: SelfDown | None = None
        forget(cluster.name)  # what an earlier cluster of this name had to say
        kept = last_guard.kept_clock(cluster)
        self._clock = kept or Clock(up_since=time.monotonic(), idle_since=None)
        self._starting_until = time.monotonic() + START_S if kept is None else 0.0

    def begin(self) -> None:
        """The cluster is up: from now on it is without a job."""
        self._starting_until = 0.0

    @contextlib.contextmanager
    def request(self, op: str) -> Iterator[None]:
        """While this is entered a client's request is under way; only work keeps the cluster up.

        Raises:
            UserError: it is work, and the cluster goes down.
        """
        if op not in WORK:
            yield
            return
        if self._self_down is not None:
            raise UserError(f"cluster {self._spec.name} goes down, {self._self_down.why}; then `spmd-launch up FILE`")
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._keep(dataclasses.replace(self._clock, idle_since=None))  # counted from the next look

    async def watch(self) -> None:
        """Looks again and again; when the end has come, ends the cluster."""
        self._keep(self._clock, anew=True)
        if self._spec.rents_hosts and self._limits:
            with contextlib.suppress(OSError, subprocess.SubprocessError):  # this guard is there all the same
                await asyncio.to_thread(last_guard.begin, self._spec.name)
        while True:
            now, warned_before = time.monotonic(), self._clock.warned
            self._keep(self._look(now))
            end = self._clock.next_end(self._limits)
            if end is not None and end.reason in self._clock.warned.keys() - warned_before.keys():
                for job in self._live():
                    with contextlib.suppress(OSError):  # a full disk must not keep the cluster up
                        job.record.note(f"{self._warning(end)}; {way_on(job.record, self._spec, before=True)}")
            if end is not None and end.begins_at <= now and now >= self._starting_until:
                await self._end(end)
                return
            await asyncio.sleep(PERIOD_S)

    def state(self) -> Message:
        """What `status` tells of it: limits as the cluster file has them, seconds, and jobs that wait meanwhile."""
        now = time.monotonic()
        clock = self._look(now)
        end, idle_since = clock.next_end(self._limits), clock.idle_since
        return {
            "idle_down_after": self._spec.idle_limit,
            "max_lifetime": self._spec.lifetime_limit,
            "idle_s": 0.0 if idle_since is None else round(now - idle_since, 1),
            "waiting": [] if idle_since is None else [job.spec.name for job in self._live()],
            "ends_in_s": None if end is None else round(max(0.0, end.at - now), 1),
            "ends_by": None if end is None else end.reason,
            "warning": self._warning(end) if end is not None and end.reason in clock.warned else "",
            "going_down": self._self_down.why if self._self_down else "",
            "problem": self._self_down.problem if self._self_down else "",
        }

    async def _end(self, end: End) -> None:
        down = self._self_down = SelfDown(self._cluster, self._agents, because(end.reason, self._spec))
        while True:
            try:
                await down.end_jobs(self._live(), self._cancel, until=end.at)
                await down.finish([job.record for job in self._jobs.values()])
                return
            except Exception as error:  # noqa: BLE001 - a defect of ours must not keep up what may cost money
                down.problem = f"the launcher failed: {error!r}"
                await asyncio.sleep(RETRY_S)

    def _look(self, now: float) -> Clock:
        """A job that is queued while none runs waits for hosts that are lost: alone it keeps nothing up.

        Who brings hosts back says so again and again, which is work.
        """
        at_work = any(job.record.state is not JobState.QUEUED for job in self._live())
        busy = bool(self._under_way or at_work or now < self._starting_until)
        return self._clock.moved_on(self._limits, busy=busy, now=now)

    def _live(self) -> list[JobRun]:
        return [job for job in self._jobs.values() if not job.record.state.ended]

    def _warning(self, end: End) -> str:
        now = time.monotonic()
        at = datetime.datetime.now().astimezone() + datetime.timedelta(seconds=end.at - now)
        return warning(end, self._spec, now=now, wall=at.strftime("%H:%M:%S %Z"))

    def _keep(self, clock: Clock, anew: bool = False) -> None:
        if anew or clock != self._clock:
            with contextlib.suppress(OSError):  # as above; it is counted in memory all the same
                write_json(self._path, dataclasses.asdict(clock))
        self._clock = clock
