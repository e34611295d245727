"""What the agent of a host knows of the notices that its machine is to go, and how the supervisor hears of them."""

import asyncio
import contextlib
import threading
from collections.abc import Mapping

from launcher.notices import Notice, find_server

SEARCH_AGAIN_S = (10.0, 60.0, 300.0)  # a machine that is just starting everything may hear an answer too late


class HostNotices:
    """Watches this machine's metadata server, if it has one, from threads; made where an event loop runs.

    Args:
        host: this host's name.
        environment: variables that say where the server is, see `launcher.notices.find_server`.
    """

    def __init__(self, host: str, environment: Mapping[str, str]):
        self._loop = asyncio.get_running_loop()
        self._found: dict[str, Notice | None] = {}
        self._number = 0
        self._changed = asyncio.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._start, args=(host, dict(environment)), name="notices", daemon=True).start()

    def current(self) -> Notice | None:
        """The notice under which the host stands: of several the one with the nearest end."""
        found = [notice for notice in self._found.values() if notice is not None]
        return min(found, key=lambda notice: float("inf") if notice.within_s is None else notice.within_s, default=None)

    async def wait(self, known: int, wait_s: float) -> tuple[int, Notice | None]:
        """The notice and its number; waits up to `wait_s` for another than the one that has the number `known`."""
        if known == self._number:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)
        return self._number, self.current()

    def close(self) -> None:
        """Hears nothing more; called before the event loop is closed."""
        self._ended.set()

    def _start(self, host: str, environment: Mapping[str, str]) -> None:
        for pause_s in (0.0, *SEARCH_AGAIN_S):
            if self._ended.wait(pause_s):
                return
            server = find_server(environment, host)
            if server is not None:
                server.follow(self._pass_on, self._ended)
                return

    def _pass_on(self, source: str, notice: Notice | None) -> None:
        self._loop.call_soon_threadsafe(self._hear, source, notice)

    def _hear(self, source: str, notice: Notice | None) -> None:
        before = self.current()
        self._found[source] = notice
        if self.current() != before:
            self._number += 1
            self._changed.set()
