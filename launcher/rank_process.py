"""The agent's side of one rank: talk to it, hold its lease, know exactly how it ended."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from cluster.processes import ProcessId
from cluster.record import write_json
from launcher.environment import LEASE_S
from launcher.rank.control import EXIT_LEASE_LOST

Message = dict[str, Any]
DRAIN_S = 1.0
ENDS_OF_A_LEASE = (-signal.SIGKILL, EXIT_LEASE_LOST)  # as `RankProcess.kill` and `launcher.rank.control` end a rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exit:
    """How a process ended.

    Attributes:
        code: its exit code, or minus the number of the signal that ended it.
        peak_bytes: the most memory that it has had resident; 0: not known.
        lost: why its lease ran out, if that is what ended it.
    """

    code: int
    peak_bytes: int = 0
    lost: str = ""


class RankProcess:
    """A process that leads a group of its own and lives as long as its lease is renewed.

    `launcher.template_process` makes it.

    Args:
        pid: of the process.
        channel: our end of its control descriptor.
        exited: becomes how it ended.
        record: where it is recorded for the holder while it lives.
    """

    def __init__(self, pid: int, channel: socket.socket, exited: "asyncio.Future[Exit]", record: Path):
        self.pid = pid
        self._channel = channel
        self._exited = exited
        self._record = record
        self._hear: Callable[[Message], None] = lambda message: None
        self._silence_s: Callable[[], float] = lambda: 0.0
        self._renewed = time.monotonic()
        self._lost = ""
        self._sending = asyncio.Lock()  # a long message must not be cut by another
        identity = ProcessId.of(pid)
        if identity is not None:
            write_json(record, {"rank": identity.to_json(), "agent": ProcessId.current().to_json()})
        self._reading = keep(self._read())
        self._renewing = keep(self._renew_lease())

    @property
    def running(self) -> bool:
        return not self._exited.done()

    async def assign(self, task: Message, hear: Callable[[Message], None], silence_s: Callable[[], float]) -> None:
        """Gives the process its one task.

        Args:
            task: the assignment.
            hear: receives every message of the rank, in order.
            silence_s: seconds since somebody last asked for this rank; beyond LEASE_S it is ended, because nobody
                would learn what it does.
        """
        self._hear, self._silence_s = hear, silence_s
        await self.send(task)

    async def send(self, message: Message) -> None:
        """Sends one message; if the rank has ended, `wait` will tell, not this."""
        data = json.dumps(message).encode() + b"\n"
        with contextlib.suppress(OSError):
            async with self._sending:
                await asyncio.get_running_loop().sock_sendall(self._channel, data)

    async def exited(self) -> Exit:
        """How the process ended, once it has."""
        return await asyncio.shield(self._exited)

    async def wait(self) -> Exit:
        """As `exited`, and cleans up.

        Nothing of its process group is left after this, and everything it said has been heard.
        """
        end = await self.exited()
        lost = self._lost or self._stood_still()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # children that outlived it
        await asyncio.wait([self._reading], timeout=DRAIN_S)
        self._reading.cancel()
        self._renewing.cancel()
        self._channel.close()
        self._record.unlink(missing_ok=True)
        return dataclasses.replace(end, lost=lost) if end.code in ENDS_OF_A_LEASE else end

    def kill(self) -> None:
        """Ends the process and its children, frozen ones too."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                # First by its pid: a fork of this moment does not lead its group yet, and would be missed.
                os.kill(self.pid, signal.SIGKILL)
                os.killpg(self.pid, signal.SIGKILL)

    async def _read(self) -> None:
        async for message in read_messages(self._channel):
            self._hear(message)

    async def _renew_lease(self) -> None:
        while self.running:
            self._lost = self._stood_still()
            if (silence_s := self._silence_s()) > LEASE_S:
                self._lost = self._lost or f"its lease ran out: the supervisor had not asked for {silence_s:.0f} s"
                self.kill()
                return
            await self.send({"type": "lease"})
            self._renewed = time.monotonic()
            await asyncio.sleep(LEASE_S / 5)

    def _stood_still(self) -> str:
        """Whether it is this process that has let the lease run out; then the rank ends by itself."""
        stood_s = time.monotonic() - self._renewed
        return f"its lease ran out: its agent had stood still for {stood_s:.0f} s" if stood_s > LEASE_S else ""


async def read_messages(channel: socket.socket) -> AsyncIterator[Message]:
    """JSON objects, one a line, until the other end is closed."""
    loop = asyncio.get_running_loop()
    buffer = b""
    while True:
        try:
            data = await loop.sock_recv(channel, 1 << 16)
        except OSError:
            return
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield json.loads(line)


_TASKS: set[asyncio.Task[Any]] = set()


def keep(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Runs a coroutine as a task and holds a reference to it, which the event loop does not."""
    task = asyncio.get_running_loop().create_task(coroutine)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
    return task
