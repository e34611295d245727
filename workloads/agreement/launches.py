"""What this rank has launched on all processes, in order; compared with other ranks before anything is believed.

Collectives pair up by order: two programs that are equal on all ranks, launched in swapped order on one of them, give
silent garbage. So every launch extends a digest, and ranks compare digests before a checkpoint, a gather, a replica
check and a result. What each report carries lets the supervisor compare without the ranks' help, even in a hang.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from workloads.agreement.launch_order import (
    Launches,
    Run,
    append_run,
    describe_counts,
    describe_difference,
    first_difference,
    last_entries,
    to_runs,
)
from workloads.errors import LaunchOrderError
from workloads.exchange import Exchange

if TYPE_CHECKING:  # a fault knows the log, and the log never needs one
    from workloads.agreement.faults import LaunchFault
    from workloads.agreement.program import Program

MAX_RUNS = 1024  # kept, agreed upon or not: about 64 KB
SNAPSHOT_RUNS = 64


class LaunchLog:
    """The launches of one rank, safe to read from any thread at any time.

    Attributes:
        before_launch: called with the name of each program that spans all processes, before it is recorded.
        keep: called with the number of launches, their digest and the last runs, at each; it must be quick.
        fault: makes this rank go astray; None but in tests and under `--inject`.
        watched: whether `watch_launches` records all launches, so that the programs need not.
        programs: `{name: program}` that span all processes, as they were compiled through the context.

    Args:
        exchange: messages between all ranks, with rounds of its own.
    """

    def __init__(self, exchange: Exchange):
        self.before_launch: Callable[[str], None] | None = None
        self.keep: Callable[[int, str, list[Run]], None] | None = None
        self.fault: LaunchFault | None = None
        self.watched = False
        self.programs: dict[str, Program] = {}
        self._exchange = exchange
        self._lock = threading.Lock()
        self._count = 0
        self._digest = bytes(32)
        self._runs: list[Run] = []
        self._agreed = 0  # entries up to the last agreement
        self._reported = 0  # and up to the last report
        self._reports: dict[int, int] = {}  # {step: entries at its report} since the last agreement

    def record(self, entry: str) -> None:
        """Adds one launch, or one meeting of the ranks, at the end."""
        encoded = entry.encode()
        with self._lock:
            self._count += 1
            self._digest = hashlib.sha256(self._digest + encoded).digest()
            append_run(self._runs, entry)
            if len(self._runs) > MAX_RUNS:
                del self._runs[0]
            if self.keep is not None:
                self.keep(self._count, self._digest.hex(), self._runs)

    def report(self, step: int) -> dict[str, Any]:
        """Marks a report.

        Returns:
            What its event carries: `launches`, their number; `launch_hash`; and `tail`, the runs since the last report.
        """
        with self._lock:
            self._reports[step] = self._count
            if len(self._reports) > MAX_RUNS:
                del self._reports[next(iter(self._reports))]
            runs = last_entries(self._runs, self._count - self._reported)
            self._reported = self._count
            return {"launches": self._count, "launch_hash": self._digest.hex(), "tail": [list(run) for run in runs]}

    def snapshot(self) -> Launches:
        """The last launches, at most `SNAPSHOT_RUNS` runs of them; changes nothing."""
        with self._lock:
            runs = tuple(self._runs[-SNAPSHOT_RUNS:])
            return Launches(count=self._count, digest=self._digest.hex(), runs=runs)

    def agree(self, what: str) -> None:
        """Makes sure that all ranks have launched the same until here; every rank must call it.

        Args:
            what: the meeting, as `gather`; it is recorded too, so that another meeting elsewhere is a difference.

        Raises:
            LaunchOrderError: on every rank, naming the first differing launch.
            TimeoutError: naming the ranks that did not come.
        """
        self.record(what)
        with self._lock:
            count, digest = self._count, self._digest.hex()
            runs, reports = last_entries(self._runs, count - self._agreed), list(self._reports.items())
        posts = self._exchange.all_gather("launches", [count, digest])
        if all(post == posts[0] for post in posts):
            with self._lock:
                self._agreed = count
                self._reports = {}
            return
        tails = self._exchange.all_gather("tails", [count, runs, reports])
        ranks = self._exchange.ranks
        ends = {
            rank: Launches(count=number, digest="", runs=to_runs(tail))
            for rank, (number, tail, _) in zip(ranks, tails, strict=True)
        }
        marks = {rank: {step: number for step, number in tail[2]} for rank, tail in zip(ranks, tails, strict=True)}
        raise LaunchOrderError(explain(ends, marks))

    def skip_next(self, name: str) -> None:
        """Fault: the next launch of the program `name` is left out on this rank, its result is zeros."""
        from workloads.agreement.faults import SkipLaunch

        self.fault = SkipLaunch(name)

    def swap_next(self) -> None:
        """Fault: this rank launches another program before the next one, and leaves it out when its turn comes."""
        from workloads.agreement.faults import SwapLaunches

        self.fault = SwapLaunches()

    def recompile_next(self, *, changed: bool) -> None:
        """Fault: the next program to be launched is compiled anew first; call it on all ranks, `changed` on one."""
        from workloads.agreement.faults import RecompileProgram

        self.fault = RecompileProgram(changed=changed)


def explain(ends: Mapping[int, Launches], reports: Mapping[int, Mapping[int, int]]) -> str:
    """Says where the launches of the ranks part.

    Args:
        ends: `{rank: its last launches}`.
        reports: `{rank: {step: launches at its report}}`.
    """
    found = first_difference({rank: (end.start, end.runs) for rank, end in ends.items()})
    where = describe_difference(*found) if found else "the first differing launch is older than what is kept"
    counts = count_difference(reports)
    sentence = f"ranks have launched programs in different orders: {where}"
    return f"{sentence}; {counts}" if counts else sentence


def count_difference(reports: Mapping[int, Mapping[int, int]]) -> str:
    """The first step at whose report the ranks had launched different numbers of programs, in words, or ''."""
    common = set.intersection(*(set(steps) for steps in reports.values()))
    for step in sorted(common):
        numbers = {rank: steps[step] for rank, steps in reports.items()}
        if len(set(numbers.values())) > 1:
            return describe_counts(step, numbers)
    return ""
