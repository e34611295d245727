"""Whether the kernel of this host has killed a process for want of memory in the last seconds."""

import collections
import time
from collections.abc import Callable
from pathlib import Path

WINDOW_S = 10.0  # a large process takes seconds to die, and its agent may be busy


def oom_kills() -> int | None:
    """Processes that this host's kernel has killed because memory ran out, since it booted; None: it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:  # no Linux, or a sandbox
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


class OomWatch:
    """The kernel counts what it kills on the whole machine, not whom: only what has just happened explains an end.

    Args:
        count: of kills so far; None: not known.
        clock: in seconds.
    """

    def __init__(
        self, count: Callable[[], int | None] = oom_kills, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._clock = clock
        self._seen = collections.deque([(clock(), count())], maxlen=2)

    def look(self) -> None:
        """Call it now and then: what is older than twice WINDOW_S is forgotten."""
        now = self._clock()
        if now - self._seen[-1][0] >= WINDOW_S:
            self._seen.append((now, self._count()))

    def has_killed(self) -> bool | None:
        """Whether there was a kill in the last seconds, WINDOW_S at least; None: the kernel does not say."""
        before, now = self._seen[0][1], self._count()
        return None if before is None or now is None else now > before
