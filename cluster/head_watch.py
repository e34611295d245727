"""Whether a machine still reaches the head, which has given it up when it was cut off for long."""

import contextlib
import socket
import threading
import time

PERIOD_S = 1.0
CONNECT_TIMEOUT_S = 2.0


class HeadWatch:
    """Connects to the head's control service again and again, from a thread, until it is closed.

    Ray's own connections do not tell: after a cut of a minute, TCP tries again only after pauses of as long.

    Args:
        gcs_address: host:port.
    """

    def __init__(self, gcs_address: str):
        host, _, port = gcs_address.rpartition(":")
        self._place = host, int(port)
        self._reached = time.monotonic()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def away_s(self) -> float:
        """Seconds since the head was last reached."""
        return time.monotonic() - self._reached

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(PERIOD_S):
            with contextlib.suppress(OSError):
                socket.create_connection(self._place, timeout=CONNECT_TIMEOUT_S).close()
                self._reached = time.monotonic()
