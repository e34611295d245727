"""The starts of ranks that are under way on a host, and those that are to come to nothing."""

import asyncio
import collections
import contextlib
from collections.abc import Iterator

MAX_STOPPED = 1000  # ids that are kept: a start arrives seconds after its stop, if it does


class HostStarts:
    """What an agent knows of them: a rank takes a while to start, and its attempt may be stopped meanwhile."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Event] = {}
        self._stopped: collections.deque[str] = collections.deque(maxlen=MAX_STOPPED)

    @contextlib.contextmanager
    def begin(self, attempt_id: str) -> Iterator[None]:
        """While an attempt's rank starts; all other starts that are under way are older, and stopped."""
        self._stopped.extend(self._under_way)
        over = self._under_way[attempt_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._under_way[attempt_id]
            over.set()

    def is_stopped(self, attempt_id: str) -> bool:
        """Whether an attempt is to have no rank here any more."""
        return attempt_id in self._stopped

    async def stop(self, attempt_id: str) -> None:
        """Stops an attempt whose rank has not started; returns when no start of it is under way."""
        self._stopped.append(attempt_id)
        if attempt_id in self._under_way:
            await self._under_way[attempt_id].wait()
