"""Saves that are written in the background, and that nobody has waited for yet."""

import contextlib
from collections.abc import Callable


class SavesUnderWay:
    """Those of one rank, of all its savers: a result may not be told before it is known how they end."""

    def __init__(self) -> None:
        self._waits: list[Callable[[], object]] = []

    def __bool__(self) -> bool:
        return bool(self._waits)

    def begin(self, wait: Callable[[], object]) -> None:
        """Notes a save that was begun.

        Args:
            wait: returns when it has ended, or raises what has become of it.
        """
        self._waits.append(wait)

    def end(self, wait: Callable[[], object]) -> None:
        """Whoever calls this waits for the save himself, and sees how it ends."""
        with contextlib.suppress(ValueError):
            self._waits.remove(wait)

    def wait(self) -> None:
        """Waits for all, in the order in which they were begun.

        Raises:
            Exception: what the first of them raises that comes to no good end.
        """
        while self._waits:
            self._waits.pop(0)()
