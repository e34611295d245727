"""Takes a running job to other hosts at its commits, and asks it for a commit when a host of it is to go."""

import asyncio
import dataclasses
import datetime
import time
from collections.abc import Sequence

from ray.exceptions import RayError, RayTaskError

from launcher.gang import Gang
from launcher.host_pool import HostPool
from launcher.interactive import WORKLOAD
from launcher.job_record import JobRecord
from launcher.moves import Free, Move, Pace, Stay, decide_move
from launcher.notices import Notice
from launcher.rank_process import Message, keep

TELL_TIMEOUT_S = 5.0
RETRY_S = 0.3


@dataclasses.dataclass
class _Clock:
    """When an attempt began, and what rank 0 has reported first and last: (seconds, step); by our monotonic clock."""

    began_s: float
    first: tuple[float, int] | None = None
    last: tuple[float, int] | None = None
    total: int = 0

    def hear(self, now_s: float, report: Message) -> None:
        self.last = (now_s, report["step"])
        self.first = self.first or self.last
        self.total = report["total"]

    def pace(self, committed: int) -> Pace:
        if self.first is None or self.last is None:
            return Pace()
        restart_s = self.first[0] - self.began_s
        steps = self.last[1] - self.first[1]
        if steps <= 0:
            return Pace(restart_s=restart_s)
        step_s = (self.last[0] - self.first[0]) / steps
        again_s = max(0, self.last[1] - committed) * step_s
        return Pace(restart_s=restart_s, left_s=(self.total - self.last[1]) * step_s, again_s=again_s)


class JobMoves:
    """The moves of one job.

    Args:
        record: of the job.
        pool: where its hosts come from.
        sizes: numbers of hosts that it may run on.

    Attributes:
        due: set when the attempt is to end, because a move is decided.
    """

    def __init__(self, record: JobRecord, pool: HostPool, sizes: Sequence[int]):
        self.due = asyncio.Event()
        self._record = record
        self._pool = pool
        self._sizes = sizes
        self._gang: Gang | None = None
        self._clock = _Clock(began_s=0.0)
        self._move: Move | None = None
        self._deciding = False
        self._had: set[str] = set()
        self._grown_at: float | None = None
        self._said: set[str] = set()
        self._num_saves = 0
        self._saving: asyncio.Task[None] | None = None

    def begin_attempt(self, gang: Gang) -> None:
        """From now on it is this attempt's ranks that are asked, and that end."""
        self._gang = gang
        self._clock = _Clock(began_s=time.monotonic())
        self._had |= set(self._record.hosts)
        self._num_saves = 0
        self._move = None
        self.due.clear()

    def end_attempt(self) -> None:
        """Its ranks are asked for nothing any more."""
        self._gang = None

    def hear(self, rank: int, event: Message) -> None:
        """Takes what a rank of the attempt has said: of rank 0 its reports and its commits."""
        if rank != 0:
            return
        if event["type"] == "report":
            self._clock.hear(time.monotonic(), event)
        elif event["type"] == "checkpoint" and self._gang is not None and not self._deciding:
            self._deciding = True
            keep(self._decide(event["step"]))

    def leaving(self) -> dict[str, str]:
        """`{host: notice}` of the hosts that are to go."""
        return {host: str(notice) for host, notice in self._pool.leaving.items()}

    def joined(self) -> None:
        """All ranks run: what was asked for before could not be heard."""
        if self._hosts_to_leave():
            self.ask_for_save()

    def told(self, host: str, notice: Notice | None) -> None:
        """A host is to go, or after all it is not."""
        if host not in self._record.hosts or self._record.state.ended:
            return
        if notice is None:
            self._record.event("notice-withdrawn", host=host)
            self._record.note(f"host {host} stays: its cloud has taken the notice back")
            return
        deadline = None if notice.within_s is None else local_time(notice.within_s)
        self._record.event("notice", host=host, notice=notice.kind, word=notice.word, deadline=deadline)
        self._record.note(f"host {host}: {notice}; {self._cannot_save() or 'a checkpoint is saved now'}")
        self.ask_for_save()

    def look(self) -> None:
        """Called now and then: of a job that never commits, tells what it could do if it did."""
        if self._gang is None or not self._never_commits():
            return
        decision = self._decision(0)
        if isinstance(decision, Move) and decision.grows:
            self._say(Stay(what=f"does not grow back to {len(decision.hosts)} hosts", why=self._never_commits()))

    def go(self) -> list[str] | None:
        """Puts the move that was decided on record and takes its hosts; None: there is none.

        Returns:
            The hosts of the next attempt, in the order of ranks.
        """
        move, self._move = self._move, None
        self.due.clear()
        if move is None:
            return None
        hosts = self._pool.in_rank_order(move.hosts)
        if move.grows:
            self._grown_at = time.monotonic()
        self._said.clear()
        self._record.move_attempt(hosts, move.why)
        self._pool.take(self._record.spec.name, hosts)
        return hosts

    # -- inside

    def _hosts_to_leave(self) -> list[str]:
        """Hosts of the attempt that are to go, or of no use without one that is."""
        leaving = set(self._pool.with_units(self._pool.leaving))
        return [host for host in self._record.hosts if host in leaving]

    def _cannot_save(self) -> str:
        spec = self._record.spec
        if spec.command is not None:
            return "a command has no checkpoint that could be asked for"
        return "a gang has no checkpoint" if spec.workload == WORKLOAD else ""

    def _never_commits(self) -> str:
        at_the_end = "--checkpoint-every 0 saves at the end alone" if self._record.spec.checkpoint_every == 0 else ""
        return self._cannot_save() or at_the_end

    async def _decide(self, step: int) -> None:
        """At a commit: decides, and reserves the hosts while they are asked whether they are there."""
        try:
            decision = self._decision(step) if step != self._clock.total else Stay()
            if isinstance(decision, Move):
                await self._try(decision)
            elif decision.what:
                self._say(decision)
        finally:
            self._deciding = False

    def _decision(self, step: int) -> Move | Stay:
        now = time.monotonic()
        name, hosts = self._record.spec.name, self._record.hosts
        free = {host: Free(for_s=s, is_back=host in self._had) for host, s in self._pool.free().items()}
        return decide_move(
            step=step,
            hosts=hosts,
            leaving=self._hosts_to_leave(),
            free=free,
            sizes=self._sizes,
            pace=self._clock.pace(step),
            others_wait=self._pool.others_could_start(name),
            grown_s=None if self._grown_at is None else now - self._grown_at,
        )

    async def _try(self, move: Move) -> None:
        name, gang, hosts = self._record.spec.name, self._gang, self._record.hosts
        self._pool.take(name, list(dict.fromkeys([*hosts, *move.hosts])))
        there = await self._pool.all_answer([host for host in move.hosts if host not in hosts])
        if gang is not self._gang:
            return  # the attempt has ended meanwhile, and who decides what comes next has the hosts
        if not there:
            self._pool.take(name, hosts)
            return
        self._move = move
        self.due.set()

    def _say(self, stay: Stay) -> None:
        """Once for each attempt that was moved to, whatever the reason is later."""
        if stay.what not in self._said:
            self._said.add(stay.what)
            self._record.note(f"{stay.what}: {stay.why}")

    def ask_for_save(self) -> None:
        """Asks all ranks for a checkpoint at once, unless the job saves none or its ranks do not run yet."""
        if self._gang is not None and self._gang.joined.is_set() and not self._cannot_save():
            self._num_saves += 1
            self._saving = keep(self._tell_all(self._gang, self._num_saves, self._saving))

    async def _tell_all(self, gang: Gang, number: int, before: asyncio.Task[None] | None) -> None:
        """Every rank must hear every request, in order: it waits where it asks next for the words of all others."""
        if before is not None:
            await asyncio.wait([before])
        message = {"type": "save", "number": number}
        await asyncio.gather(*(self._tell(gang, rank, message) for rank in range(len(gang.tasks))))

    async def _tell(self, gang: Gang, rank: int, message: Message) -> None:
        while gang is self._gang:
            try:
                told = gang.agents[rank].tell.remote(gang.tasks[rank].attempt_id, message)
                await asyncio.wait_for(told, TELL_TIMEOUT_S)
                return
            except RayTaskError:  # an agent that was started again has lost its rank
                return
            except (RayError, TimeoutError):
                await asyncio.sleep(RETRY_S)


def local_time(in_s: float) -> str:
    """What a clock on the wall will show, ISO 8601."""
    return (datetime.datetime.now().astimezone() + datetime.timedelta(seconds=in_s)).isoformat(timespec="seconds")
