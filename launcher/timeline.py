"""What the supervisor knows of one rank over time: all durations are by the supervisor's own monotonic clock.

Clocks of two hosts are never compared: a rank says what it has done, the observer when it heard of it.
"""

import collections
import dataclasses
from typing import Any

from launcher.attempt import HostNews
from launcher.place import MOVING, Place

RATE_WINDOW_S = 30.0
MIN_RATE_WINDOW_S = 10.0
MIN_RATE_STEPS = 5
PLACE = tuple(field.name for field in dataclasses.fields(Place))  # of a progress message
SAID = ("program", "usual_s", "longest_s", "own_s")  # and the rest of it


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankProgress:
    """One rank at one moment.

    Attributes:
        rank, host: who.
        phase, step, total: what it does, and its last report.
        moves, reports, detours, events: see `launcher.place.Place`.
        launches: programs launched so far; 0 where nobody counts them.
        program: name of the last one, or "".
        done: it has given its result.
        ended: its process is known to have ended.
        stood_s: for how long it has been seen at this place and might have moved: not while it waited for a rank
            behind it, nor, up to a bound, because of an agent that was silent.
        silent_s: since it last said anything to its agent.
        host_silent_s: since its agent last answered.
        state: the kernel's letter for its process.
        usual_s: median time from one report to the next, by the rank's clock; None: not known yet.
        longest_s: and the longest of the last ones.
        own_step_s: seconds of its own, not spent waiting, per step; None: not known yet.
        own_share: part of the time that this is.
        own_s: seconds of its own so far.
    """

    rank: int
    host: str
    phase: str = "start"
    step: int = 0
    total: int = 0
    moves: int = 0
    reports: int = 0
    detours: int = 0
    events: int = 0
    launches: int = 0
    program: str = ""
    done: bool = False
    ended: bool = False
    stood_s: float = 0.0
    silent_s: float = 0.0
    host_silent_s: float = 0.0
    state: str = ""
    usual_s: float | None = None
    longest_s: float = 0.0
    own_step_s: float | None = None
    own_share: float = 0.0
    own_s: float = 0.0

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Orders ranks of one program; see `launcher.place.Place`."""
        return (self.moves, self.reports, self.launches, self.detours)


class Timeline:
    """Takes what one rank's agent says, as it comes.

    Args:
        rank, host: who.
        now_s: the observer's monotonic clock, as in every method.
    """

    def __init__(self, rank: int, host: str, now_s: float):
        self._last = RankProgress(rank=rank, host=host)
        self._place = Place()
        self._num_events = 0  # that told where the rank is
        self._answered = self._moved = now_s
        self._agent_silent_s = 0.0
        self._listening = False
        self._own: collections.deque[tuple[float, int, float]] = collections.deque()

    @property
    def ended(self) -> bool:
        """Whether the rank's process is known to have ended."""
        return self._last.ended

    def hear(self, now_s: float, news: HostNews) -> None:
        """The agent has answered.

        Where the rank is comes in two ways, by its events and from a thread of it. The later account counts: the thread
        alone knows of launches, and may hang while the rank goes on.
        """
        self._listening = True
        self._answered, self._agent_silent_s = now_s, news.silent_s
        before, launches = self._last.place, self._last.launches
        told: dict[str, Any] = {"state": news.state}
        for event in news.events:
            if event["type"] in MOVING:
                self._num_events += 1
                if self._num_events > self._place.events:
                    self._place = self._place.after(event)
                    launches = max(launches, event.get("launches", 0))
        if (said := news.progress) is not None:
            if said.get("events", self._place.events) >= self._place.events:
                self._place = Place(**{name: said[name] for name in PLACE if name in said})
            told |= {name: said[name] for name in SAID if name in said}
            launches = max(launches, said.get("launches", 0))
            self._measure(now_s, said["step"], said["own_s"])
        place = {name: getattr(self._place, name) for name in PLACE}
        self._last = dataclasses.replace(self._last, launches=launches, **told, **place)
        if self._last.place != before:
            self._moved = now_s

    def finish(self, *, ended: bool) -> None:
        """The rank has given its result, or its process has ended."""
        self._last = dataclasses.replace(self._last, done=True, ended=ended)

    def forgive(self, seconds: float) -> None:
        """The observer itself stood still for so long: nobody else is to blame for it."""
        self._answered += seconds
        self._moved += seconds

    def wait_until(self, now_s: float) -> None:
        """The rank has waited for another one, so how long it stands is counted from now."""
        self._moved = max(self._moved, now_s)

    def host_silent_s(self, now_s: float) -> float:
        """Seconds since its agent last answered; 0 before the first answer."""
        return max(0.0, now_s - self._answered) if self._listening else 0.0

    def at(self, now_s: float, *, excused_until_s: float = 0.0, most_s: float = 0.0) -> RankProgress:
        """Where the rank is now.

        Args:
            now_s: as in every method.
            excused_until_s: before, it may not have been able to move.
            most_s: but of the time at one place no more than so much is excused.
        """
        since_answer = self.host_silent_s(now_s)
        own_step_s, own_share = self._own_rate()
        excused_s = min(most_s, max(0.0, excused_until_s - self._moved))
        return dataclasses.replace(
            self._last,
            stood_s=max(0.0, now_s - self._moved - excused_s),
            silent_s=self._agent_silent_s + since_answer,
            host_silent_s=since_answer,
            own_step_s=own_step_s,
            own_share=own_share,
        )

    def _measure(self, now_s: float, step: int, own_s: float) -> None:
        """Keeps when each step was first seen: those of the window, and `MIN_RATE_STEPS` however long they took.

        Whatever the rank's phase: one that waits for a slow one is seldom found in "run".
        """
        own = self._own
        if not step or (own and step == own[-1][1]):
            return
        if own and step < own[-1][1]:  # it counts anew
            own.clear()
        own.append((now_s, step, own_s))
        while now_s - own[0][0] > RATE_WINDOW_S and step - own[1][1] >= MIN_RATE_STEPS:
            own.popleft()

    def _own_rate(self) -> tuple[float | None, float]:
        if not self._own:
            return None, 0.0
        (start, first, own_start), (end, last, own_end) = self._own[0], self._own[-1]
        if end - start < MIN_RATE_WINDOW_S or last - first < MIN_RATE_STEPS:
            return None, 0.0
        return (own_end - own_start) / (last - first), (own_end - own_start) / (end - start)
