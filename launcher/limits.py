"""When a cluster is to take itself down: after too long without a job, or at the end of its lifetime. Pure decisions.

All times are the head's monotonic clock, which nobody sets and which stands while a laptop sleeps: an hour of sleep is
no hour without a job.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from cluster.durations import in_units, seconds_of
from cluster.spec import ClusterSpec

NOTICE_S = 300.0  # between the warning and the end
LAST_SAVE_S = 120.0  # of that, for the last checkpoints


class Reason(enum.StrEnum):
    """Which limit of the cluster file is reached."""

    IDLE = "idle_down_after"
    LIFETIME = "max_lifetime"


def limits_of(spec: ClusterSpec) -> dict[Reason, float]:
    """The limits that a cluster has, in seconds."""
    texts = {Reason.IDLE: spec.idle_limit, Reason.LIFETIME: spec.lifetime_limit}
    return {reason: float(seconds_of(text) or 0) for reason, text in texts.items() if text is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clock:
    """What the limits are counted from.

    Attributes:
        up_since: when the cluster came up.
        idle_since: when it last had something to do; None: it has now.
        warned: when it was first warned of each limit that is near.
    """

    up_since: float
    idle_since: float | None
    warned: Mapping[Reason, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Clock":
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**value, "warned": {Reason(key): at for key, at in value["warned"].items()}})

    def moved_on(self, limits: Mapping[Reason, float], *, busy: bool, now: float) -> "Clock":
        """The clock after a look at the cluster.

        Args:
            limits: of the cluster.
            busy: whether it has something to do.
            now: by the same clock.
        """
        idle_since = None if busy else now if self.idle_since is None else self.idle_since
        clock = dataclasses.replace(self, idle_since=idle_since)
        near = {reason: now for reason in limits if (end := clock._end(reason, limits)) and end.warns_at <= now}
        warned = {reason: self.warned.get(reason, at) for reason, at in near.items()}
        return dataclasses.replace(clock, warned=warned)

    def next_end(self, limits: Mapping[Reason, float]) -> "End | None":
        """The end that comes first, if nothing else happens; None: none comes."""
        ends = [end for reason in limits if (end := self._end(reason, limits))]
        return min(ends, key=lambda end: end.at, default=None)

    def _end(self, reason: Reason, limits: Mapping[Reason, float]) -> "End | None":
        since = self.idle_since if reason is Reason.IDLE else self.up_since
        if since is None:
            return None
        notice_s = min(NOTICE_S, limits[reason] / 2)
        at = since + limits[reason]
        if reason in self.warned:  # late, where nobody looked when it was time: a warning is given its time
            at = max(at, self.warned[reason] + notice_s)
        return End(reason=reason, at=at, notice_s=notice_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """When a cluster ends, and why.

    Attributes:
        reason: the limit.
        at: when.
        notice_s: how long before it is warned.
    """

    reason: Reason
    at: float
    notice_s: float

    @property
    def warns_at(self) -> float:
        return self.at - self.notice_s

    @property
    def begins_at(self) -> float:
        """When the end begins: jobs that run need time for their last checkpoints."""
        last_saves_s = min(LAST_SAVE_S, self.notice_s / 2) if self.reason is Reason.LIFETIME else 0.0
        return self.at - last_saves_s


def because(reason: Reason, spec: ClusterSpec) -> str:
    """The reason in words, that go on after what the cluster does."""
    if reason is Reason.IDLE:
        return f"after {spec.idle_limit} without a job"
    return f"{spec.lifetime_limit} after `up` (max_lifetime)"


def warning(end: End, spec: ClusterSpec, *, now: float, wall: str) -> str:
    """What a person is told before.

    Args:
        end: that comes.
        spec: of the cluster.
        now: by the clock of `end`.
        wall: the time of the end as their own clock shows it.
    """
    left = in_units(max(0.0, end.at - now))
    what = f"cluster {spec.name} goes down at {wall}, in {left}, {because(end.reason, spec)}"
    return f"{what}; a job keeps it up" if end.reason is Reason.IDLE else what
