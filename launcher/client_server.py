"""The supervisor's end of a client's connection: see `launcher.protocol`."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

from launcher.errors import FailureError, UserError
from launcher.protocol import MAX_LINE, Line, Message, error_answer


class ClientServer:
    """Listens on a Unix socket that only its user can open.

    Args:
        path: of the socket.
        answer: a request and the bytes that came with it to its answer.
        streams: by the name of a request, what answers it in many lines; the connection ends with them.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[Message, bytes], Awaitable[Message]],
        streams: Mapping[str, Callable[[Message], AsyncIterator[Message]]],
    ):
        self._path = path
        self._answer = answer
        self._streams = streams

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
                async for answer in self._answers(request, data):
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
                if request["op"] in self._streams:
                    break
        writer.close()

    async def _answers(self, request: Message, data: bytes) -> AsyncIterator[Message]:
        try:
            if request["op"] in self._streams:
                async for answer in self._streams[request["op"]](request):
                    yield answer
            else:
                yield await self._answer(request, data)
        except (UserError, FailureError) as error:
            yield error_answer(error)
