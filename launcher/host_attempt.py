"""One attempt on one host, as its agent sees it: the rank process, what it has said, how it ended."""

import asyncio
import contextlib
import dataclasses
import time
from pathlib import Path

from launcher.attempt import RankTask
from launcher.rank_process import Message, RankProcess, keep

LOG_PERIOD_S = 0.1


class HostAttempt:
    """A rank process at work on one `RankTask`."""

    def __init__(self, task: RankTask, process: RankProcess, folder: Path):
        self.task = task
        self.process = process
        self.folder = folder
        self.output = folder / "output"
        self.log = folder / "rank.log"
        self.ended = asyncio.Event()
        self._events: list[Message] = []
        self._news = asyncio.Event()
        self._heard = time.monotonic()
        self.output.mkdir(parents=True)

    def assignment(self, host: str, address: str, files: Path) -> Message:
        """The one message that turns a fork of the template into a rank."""
        paths = {param: str(files / sha256 / name) for param, (sha256, name) in self.task.files.items()}
        return {
            **dataclasses.asdict(self.task),
            "type": "assign",
            "settings": {**self.task.settings, **paths},
            "host": host,
            "address": address,
            "output": str(self.output),
            "log": str(self.log),
        }

    def hear(self, message: Message) -> None:
        """Records an event; times are this host's monotonic clock, for durations only."""
        self._events.append({**message, "at": time.monotonic()})
        self._news.set()

    def silence_s(self) -> float:
        """Seconds since the supervisor last asked."""
        return time.monotonic() - self._heard

    async def events_after(self, after: int, wait_s: float) -> list[Message]:
        self._heard = time.monotonic()
        if len(self._events) <= after:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)
        self._heard = time.monotonic()
        return self._events[after:]

    async def follow(self) -> None:
        """Passes on the log as it grows; says how the process ended, after everything else."""
        waiter = keep(self.process.wait())
        position = 0
        while not waiter.done():
            await asyncio.wait([waiter], timeout=LOG_PERIOD_S)
            position = self._pass_on_log(position)
        self._pass_on_log(position)
        self.hear({"type": "exit", "code": waiter.result()})
        self.ended.set()

    def _pass_on_log(self, position: int) -> int:
        if not self.log.exists():
            return position
        with self.log.open("rb") as file:
            file.seek(position)
            data = file.read()
        if data:
            self.hear({"type": "log", "text": data.decode(errors="replace")})
        return position + len(data)
