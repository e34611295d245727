"""Watches one attempt: keeps the timelines, asks the watchdog once a second, and tells each finding once."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from launcher.attempt import HostNews
from launcher.timeline import RankProgress, Timeline
from launcher.watchdog import ANSWERS_S, Bounds, Finding, behind_all, judge

PERIOD_S = 1.0
CUTS_A_PLACE = 2  # of the longest that a host survives: so long at most is excused while a rank stands at one place
STALL_S = 3.0  # this loop itself stood still: its own lateness must not make anybody look silent


class GangWatch:
    """The timelines of an attempt's ranks, and what has been said about them.

    Args:
        hosts: names, in the order of ranks.
        bounds: what is too long.
    """

    def __init__(self, hosts: Sequence[str], bounds: Bounds | None = None):
        now = time.monotonic()
        self._bounds = bounds or Bounds()
        self._timelines = [Timeline(rank, host, now) for rank, host in enumerate(hosts)]
        self._excused_until_s = 0.0
        self._told: dict[tuple[str, bool, tuple[int, ...]], list[tuple[int, int, int, int]]] = {}

    def hear(self, rank: int, news: HostNews) -> None:
        """An agent has answered."""
        now = time.monotonic()
        self._excuse(now, self._timelines[rank].host_silent_s(now))
        self._timelines[rank].hear(now, news)

    def finish(self, rank: int, *, ended: bool) -> None:
        """A rank has given its result, or its process has ended."""
        self._timelines[rank].finish(ended=ended)

    def host_silent_s(self, rank: int) -> float:
        """Seconds since a rank's agent last answered."""
        return self._timelines[rank].host_silent_s(time.monotonic())

    def ranks(self) -> list[RankProgress]:
        """Where every rank is now."""
        now = time.monotonic()
        for timeline in self._timelines:
            if not timeline.ended:
                self._excuse(now, timeline.host_silent_s(now))
        excused_until_s, most_s = self._excused_until_s, CUTS_A_PLACE * self._bounds.host_lost_s
        return [timeline.at(now, excused_until_s=excused_until_s, most_s=most_s) for timeline in self._timelines]

    def _excuse(self, now_s: float, silent_s: float) -> None:
        """No rank is blamed for standing while an agent was silent for long.

        A host that was cut off comes back to each connection when TCP tries again there, which it does after pauses
        that double: ranks may wait for theirs for as long again as the agent was silent. A busy host's agent may be
        silent again and again, which must not hide a rank that hangs: see `CUTS_A_PLACE`.
        """
        if silent_s > ANSWERS_S:
            self._excused_until_s = max(self._excused_until_s, now_s + silent_s)

    async def findings(self) -> AsyncIterator[list[Finding]]:
        """The new findings of each look, for ever; those of one look come together."""
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(PERIOD_S)
            late_s = time.monotonic() - asleep - PERIOD_S
            if late_s > STALL_S:
                for timeline in self._timelines:
                    timeline.forgive(late_s)
            yield self.look()

    def look(self) -> list[Finding]:
        """Findings that have not been told, or whose ranks have moved since; a slow rank is told of once."""
        ranks = self.ranks()
        new = []
        for finding in judge(ranks, self._bounds):
            key = (finding.kind, finding.fatal, finding.ranks)
            places = [] if finding.kind == "slow" else [ranks[r].place for r in finding.ranks]
            if self._told.get(key) != places:
                self._told[key] = places
                new.append(finding)
        now = time.monotonic()
        behind = {rank.rank for rank in behind_all(ranks)}
        for rank, timeline in enumerate(self._timelines):
            if rank not in behind:
                timeline.wait_until(now)
        return new
