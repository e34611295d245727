"""Compares what the ranks say they have launched, without their help: works while they hang, and needs no JAX."""

import collections
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from workloads.agreement.launch_order import (
    Launches,
    Run,
    append_run,
    describe_counts,
    describe_difference,
    drop_first,
    first_difference,
    to_runs,
)

MAX_RUNS = 8192  # kept of a rank that is ahead of the others
MAX_REPORTS = 8192


class LaunchLedger:
    """The launches of one attempt, rank by rank, as they become known.

    A rank that is merely behind is no difference. Two ranks differ where one has launched another program than the
    other at the same place, or where they have launched different numbers of programs at the report of the same step.
    They differ too where one, which has not come to that report, has launched more than the other had there: it may
    never come, for the two may wait for each other, one in a collective and one elsewhere.

    Args:
        num_ranks: how many take part.

    Attributes:
        difference: the first difference that was found, in words; empty while there is none.
    """

    def __init__(self, num_ranks: int):
        self.difference = ""
        self._num_ranks = num_ranks
        self._known: dict[int, Launches] = {}
        self._digests: dict[int, dict[int, str]] = {}  # {number of launches: {rank: digest}}
        self._reports: dict[tuple[int, int], dict[int, int]] = {}  # {(step, how often before): {rank: launches}}
        self._rounds: collections.Counter[int] = collections.Counter()  # times that all ranks have reported a step
        self._times_reported: collections.Counter[tuple[int, int]] = collections.Counter()  # of (rank, step), beyond
        self._last: dict[int, tuple[int, int]] = {}  # {rank: its last report, as (step, how often before)}
        self._num_reports: collections.Counter[int] = collections.Counter()  # of each rank
        self._fewest_next: dict[tuple[int, int], tuple[int, int, int]] = {}  # see `_hear_next`
        self._at: dict[int, tuple[tuple[int, int], int]] = {}  # {rank: (last report, launches)}, by its own latest word
        self._leader: int | None = None  # the rank of which the most launches are known
        self._heard = 0

    def hear_report(self, rank: int, report: Mapping[str, Any]) -> str:
        """Takes a `report` event as a rank sent it; returns `difference`."""
        step, launches = int(report["step"]), int(report["launches"])
        time = self._rounds[step] + self._times_reported[rank, step]
        self._times_reported[rank, step] += 1
        numbers = self._reports.setdefault((step, time), {})
        numbers[rank] = launches
        if len(self._reports) > MAX_REPORTS:
            del self._reports[next(iter(self._reports))]
        self.hear(rank, launches, str(report["launch_hash"]), report["tail"])
        self._num_reports[rank] += 1
        self._hear_next(rank, (step, time), launches)
        if not self.difference and launches != next(iter(numbers.values())):
            self.difference = describe_counts(step, numbers)
        if len(numbers) == self._num_ranks:
            self._close_round(step, time)
        return self.difference

    def _close_round(self, step: int, time: int) -> None:
        """All ranks have reported a step so many times: one number says it, instead of one for each rank."""
        self._reports.pop((step, time), None)
        self._rounds[step] += 1
        for rank in range(self._num_ranks):
            self._times_reported[rank, step] -= 1
            if not self._times_reported[rank, step]:
                del self._times_reported[rank, step]

    def hear(self, rank: int, launches: int, digest: str, tail: Sequence[Sequence[object]]) -> str:
        """Takes what a rank says at any other time, such as its watchdog while it hangs; returns `difference`.

        Args:
            rank: who.
            launches: how many, since the start of the attempt.
            digest: rolling sha256 over them.
            tail: the last of them, as `[entry, times in a row]`; what is known already may be among them.
        """
        self._extend(rank, Launches(count=launches, digest=digest, runs=to_runs(tail)))
        digests = self._digests.setdefault(launches, {})
        digests[rank] = digest
        if not self.difference:
            found = self._compare_with_leader(rank)
            if found is not None:
                self.difference = describe_difference(*found)
            elif digest != next(iter(digests.values())):  # in what was dropped to bound the memory
                ranks = " and ".join(f"rank {known}" for known in sorted(digests))
                self.difference = f"one of the first {launches} launches: {ranks} have launched different programs"
        self._heard += 1
        if not self.difference and self._heard % self._num_ranks == 0:  # it looks at all ranks
            self._forget_common()
        return self.difference

    def _compare_with_leader(self, rank: int) -> tuple[int, dict[int, str]] | None:
        """Where this rank parts from the others. All have been seen to agree with the leader, so it stands for them."""
        leader = rank if self._leader is None else self._leader
        if self._leader is None or self._known[rank].count > self._known[leader].count:
            self._leader = rank
        found = first_difference({known: self._tail(known) for known in (leader, rank)}) if rank != leader else None
        if found is None:
            return None
        return first_difference({known: self._tail(known) for known in self._known}) or found

    def _tail(self, rank: int) -> tuple[int, Sequence[Run]]:
        log = self._known[rank]
        return log.start, log.runs

    def close(self, unknown: Collection[int] = ()) -> str:
        """All ranks have ended: one that has launched less than another is no longer behind; returns `difference`.

        Args:
            unknown: ranks of which no last word has come: what they had said before tells nothing of their ends.
        """
        numbers = {rank: log.count for rank, log in sorted(self._known.items()) if rank not in unknown}
        if not self.difference and len(set(numbers.values())) > 1:
            counts = ", ".join(f"rank {rank} {number}" for rank, number in numbers.items())
            self.difference = f"launches until the end: {counts}"
        return self.difference

    def hear_progress(self, rank: int, reports: int, launches: int) -> str:
        """Takes where a rank is, by one word of its own about both; returns `difference`.

        Args:
            rank: who.
            reports: how many it has made; a word from before its last one here, or from after it, says nothing.
            launches: how many, not later than that word about the reports.
        """
        if rank in self._last and reports == self._num_reports[rank]:
            self._at[rank] = (self._last[rank], launches)
            self._compare_next(rank)
        return self.difference

    def _hear_next(self, rank: int, report: tuple[int, int], launches: int) -> None:
        """Keeps `{report: (fewest launches at the report after it, that one's step, the rank)}`."""
        last, self._last[rank] = self._last.get(rank), report
        step, _ = report
        if last is None or last[0] >= step:
            return
        known = self._fewest_next.get(last)
        if known is None or launches < known[0]:
            self._fewest_next[last] = (launches, step, rank)
            if len(self._fewest_next) > MAX_REPORTS:
                del self._fewest_next[next(iter(self._fewest_next))]
            for behind in self._at:
                self._compare_next(behind)

    def _compare_next(self, behind: int) -> None:
        report, launches = self._at[behind]
        theirs, next_step, ahead = self._fewest_next.get(report, (launches, 0, 0))
        if launches > theirs and not self.difference:
            counts = f"rank {ahead} {theirs}, rank {behind} {launches} or more"
            self.difference = f"launches at the report of step {next_step}: {counts}"

    def _extend(self, rank: int, news: Launches) -> None:
        known = self._known.get(rank, Launches(count=0, digest="", runs=()))
        if rank in self._known and news.count <= known.count:
            return  # older than what is known
        runs: list[Run] = []
        if news.start <= known.count:
            runs = list(known.runs)
            for entry, times in drop_first(news.runs, known.count - news.start):
                append_run(runs, entry, times)
        else:  # what lies between was never sent
            runs = list(news.runs)
        self._known[rank] = Launches(count=news.count, digest=news.digest, runs=tuple(runs[-MAX_RUNS:]))

    def _forget_common(self) -> None:
        """Drops what all ranks have been seen to agree upon."""
        if len(self._known) < self._num_ranks:
            return
        common = min(log.count for log in self._known.values())
        for rank, log in self._known.items():
            runs = tuple(drop_first(log.runs, common - log.start))
            self._known[rank] = Launches(count=log.count, digest=log.digest, runs=runs)
        self._digests = {number: ranks for number, ranks in self._digests.items() if number >= common}
