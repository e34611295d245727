"""A client's connection to the supervisor: what goes wrong there reaches the client."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from launcher.client_server import ClientServer
from launcher.errors import FailureError
from launcher.protocol import Connection, Message


async def full_disk(request: Message, data: bytes) -> Message:
    if request["op"] == "put":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/head/blobs/ab")
    return {"ok": True}


def ask_twice(socket: Path) -> None:
    with Connection(socket) as connection:
        with pytest.raises(FailureError, match=r"the head cannot do this: OSError: .*No space left.*/head/blobs/ab"):
            connection.ask({"op": "put"}, b"data")
        assert connection.ask({"op": "ping"}) == {"ok": True}


def test_a_full_disk_of_the_head_is_told_and_the_connection_stays(tmp_path: Path) -> None:
    async def serve() -> None:
        server = ClientServer(tmp_path / "socket", full_disk, {}, {})
        await server.start()
        await asyncio.to_thread(ask_twice, tmp_path / "socket")
        server._server.close()  # a supervisor listens as long as its process lives

    asyncio.run(serve())
