"""A head that answers, goes, and comes back."""

import socket
import time
from collections.abc import Callable

import pytest

from cluster import head_watch
from cluster.head_watch import HeadWatch


def test_a_head_goes_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_watch, "PERIOD_S", 0.01)
    server = socket.create_server(("127.0.0.1", 0))
    place = server.getsockname()
    watch = HeadWatch(f"{place[0]}:{place[1]}")
    try:
        _wait(lambda: watch.away_s() < 0.1)
        server.close()
        _wait(lambda: watch.away_s() > 0.5)
        server = socket.create_server(place)
        _wait(lambda: watch.away_s() < 0.1)
    finally:
        watch.close()
        server.close()


def _wait(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)
