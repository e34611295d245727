"""The supervisor's end of a client's connection: see `launcher.protocol`."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

from launcher.errors import FailureError, UserError
from launcher.protocol import MAX_LINE, Line, Message, error_answer


class Wire:
    """A connection on which client and supervisor both speak whenever they like.

    Args:
        reader, writer: its two directions.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader = reader
        self._writer = writer
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._writing = asyncio.ensure_future(self._write())

    def send(self, message: Message, data: bytes = b"") -> None:
        """Sends a line, and bytes after it, behind what is being sent; to a client that is gone nothing is."""
        self._outbox.put_nowait(json.dumps({**message, "num_bytes": len(data)}).encode() + b"\n" + data)

    async def sent(self) -> None:
        """Waits until all has gone out, so that what is large does not pile up here."""
        await self._outbox.join()

    async def requests(self) -> AsyncIterator[tuple[Message, bytes]]:
        """What the client says, until it is gone."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await self._reader.readline():
                request = Line(json.loads(line))
                yield request, await self._reader.readexactly(request["num_bytes"])

    async def close(self) -> None:
        """Sends what there is to send, and then nothing more; the connection stays open."""
        await self.sent()
        self._writing.cancel()

    async def _write(self) -> None:
        while True:
            data = await self._outbox.get()
            with contextlib.suppress(ConnectionError):
                self._writer.write(data)
                await self._writer.drain()
            self._outbox.task_done()


class ClientServer:
    """Listens on a Unix socket that only its user can open.

    Args:
        path: of the socket.
        answer: a request and the bytes that came with it to its answer.
        streams: by the name of a request, what answers it in many lines; the connection ends with them.
        talks: by the name of a request, what takes over the connection.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[Message, bytes], Awaitable[Message]],
        streams: Mapping[str, Callable[[Message], AsyncIterator[Message]]],
        talks: Mapping[str, Callable[[Message, Wire], Awaitable[None]]],
    ):
        self._path = path
        self._answer = answer
        self._streams = streams
        self._talks = talks

    async def start(self) -> None:
        """Listens from now on, as long as this object lives."""
        self._path.unlink(missing_ok=True)
        old = os.umask(0o177)
        try:
            # Held: a server that nobody refers to is collected, and its socket closed.
            self._server = await asyncio.start_unix_server(self._client, str(self._path), limit=MAX_LINE)
        finally:
            os.umask(old)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                request = Line(json.loads(line))
                data = await reader.readexactly(request["num_bytes"])
                if request["op"] in self._talks:
                    await self._talk(request, Wire(reader, writer))
                    continue
                async for answer in self._answers(request, data):
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
                if request["op"] in self._streams:
                    break
        writer.close()

    async def _talk(self, request: Message, wire: Wire) -> None:
        try:
            await self._talks[request["op"]](request, wire)
        except (UserError, FailureError) as error:
            wire.send(error_answer(error))
        finally:
            await wire.close()

    async def _answers(self, request: Message, data: bytes) -> AsyncIterator[Message]:
        try:
            if request["op"] in self._streams:
                async for answer in self._streams[request["op"]](request):
                    yield answer
            else:
                yield await self._answer(request, data)
        except (UserError, FailureError) as error:
            yield error_answer(error)
        except OSError as error:  # the head's disk is full, say: it must not look like a supervisor that is gone
            yield error_answer(FailureError(f"the head cannot do this: {type(error).__name__}: {error}"))
