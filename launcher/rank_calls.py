"""The agent's side of the calls of an interactive gang: what travels goes through files in the attempt's folder."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from launcher.interactive import PIECE_BYTES
from launcher.left_files import read_piece
from launcher.rank_process import Message, RankProcess


class RankCalls:
    """The calls of one rank.

    Args:
        folder: for what is under way; made with the first call.
        process: of the rank.
        ended: set when it is gone.
    """

    def __init__(self, folder: Path, process: RankProcess, ended: asyncio.Event):
        self._folder = folder
        self._process = process
        self._ended = ended
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    async def call(self, request: Message, payload: bytes) -> Message:
        """Hands a call to the rank and waits for what comes of it, for as long as it takes.

        Args:
            request: with `number`, and what `launcher.rank.session` takes.
            payload: the function and its arguments.

        Returns:
            What the rank has said, with `outcome` (`returned`, `raised`, or `ended`: it is gone), `size` of what it
            returned in bytes, and the first piece of it as `data`.
        """
        self._folder.mkdir(exist_ok=True)
        for left in self._folder.glob("*.answer"):  # nobody has asked for it, as another rank had raised
            left.unlink()
        file = self._folder / str(request["number"])
        await asyncio.to_thread(file.write_bytes, payload)
        answer = self._waiting[request["number"]] = asyncio.get_running_loop().create_future()
        await self._process.send({"type": "call", **request, "file": str(file)})
        gone = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            del self._waiting[request["number"]]
        if not answer.done():
            return {"outcome": "ended"}
        said = answer.result()
        path = self._answer(request["number"])
        size = path.stat().st_size if path.exists() else 0
        return {**said, "size": size, "data": await self.piece(request["number"], 0) if size else b""}

    async def piece(self, number: int, offset: int) -> bytes:
        """A piece of what a call has returned; after the last it is gone."""
        path = self._answer(number)
        data = await asyncio.to_thread(read_piece, path, offset, PIECE_BYTES)
        if offset + len(data) >= path.stat().st_size:
            path.unlink()
        return data

    def hear(self, message: Message) -> None:
        """Takes what the rank says came of a call."""
        if waiting := self._waiting.get(message["number"]):
            waiting.set_result(message)

    def interrupt(self, number: int) -> None:
        """Interrupts the rank as Ctrl-C does, if it is in that call."""
        if number in self._waiting:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGINT)

    def _answer(self, number: int) -> Path:
        return self._folder / f"{number}.answer"
