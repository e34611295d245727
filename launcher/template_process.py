"""The agent's side of its host's template: start it, make it warm, fork ranks from it."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from launcher.command_process import Activation
from launcher.environment import LEASE_S
from launcher.rank.template import FORK, IMPORT, LEASE
from launcher.rank_process import Exit, RankProcess, keep, read_messages


class TemplateEndedError(RuntimeError):
    """The template has ended, or could not be forked and so ended itself; its log says why."""


class TemplateProcess:
    """The process that ranks are forked from. Make it with `start`.

    Attributes:
        code_digest: of the code that it runs.
        warm: whether it has imported everything that a workload needs.
    """

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket, folder: Path, code_digest: str):
        self.process = process
        self.code_digest = code_digest
        self.warm = False
        self._channel = channel
        self._folder = folder
        self._forked: asyncio.Queue[int] = asyncio.Queue()
        self._forking = asyncio.Lock()
        self._exits: dict[int, asyncio.Future[Exit]] = {}
        self._early: dict[int, Exit] = {}  # exits that came before `fork` could ask for them
        keep(self._read())
        keep(self._renew_lease())

    @classmethod
    async def start(
        cls, environment: Mapping[str, str], folder: Path, code_digest: str, own: Activation | None = None
    ) -> "TemplateProcess":
        """Starts a template that has imported nothing yet.

        Args:
            environment: all of its variables, and so its ranks'.
            folder: the host's; holds `work/`, `template.log`, and `ranks/`.
            code_digest: of the code that `environment` lets it import.
            own: the Python environment of the job that it is for; None: this process's Python.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        variables = {**environment, **(own.variables(environment) if own else {})}
        with (folder / "template.log").open("ab") as output, theirs, own.in_use() if own else nullcontext() as held:
            process = await asyncio.create_subprocess_exec(
                own.python if own else sys.executable,
                "-m",
                "launcher.rank.template",
                env={**variables, "SPMD_LAUNCH_CONTROL_FD": str(theirs.fileno())},
                cwd=folder / "work",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),) if held is None else (theirs.fileno(), held),
                start_new_session=True,
            )
        return cls(process, ours, folder, code_digest)

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    async def import_all(self) -> None:
        """Tells it to become warm, or to go on with it. While it imports it neither forks nor reaps."""
        if not self.warm:
            self._signal(signal.SIGCONT)
            await self._command(IMPORT)

    def pause(self) -> None:
        """Stops its importing until `import_all`."""
        if not self.warm:
            self._signal(signal.SIGSTOP)

    async def fork(self) -> RankProcess:
        """A new rank, forked from whatever has been imported by now.

        Raises:
            TemplateEndedError: the template has ended.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        async with self._forking:
            with theirs, contextlib.suppress(OSError):
                socket.send_fds(self._channel, [FORK], [theirs.fileno()])
            pid = await self._forked.get()
        if pid < 0:
            ours.close()
            raise TemplateEndedError(f"the template process ended: see {self._folder / 'template.log'}")
        exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._exits[pid] = exited
        if pid in self._early:
            exited.set_result(self._early.pop(pid))
        return RankProcess(pid, ours, exited, self._folder / "ranks" / f"{pid}.json")

    async def end(self) -> None:
        """Ends it; ranks that still run end with it."""
        self._signal(signal.SIGKILL)
        await self.process.wait()

    async def end_after(self, rank: RankProcess) -> None:
        """Ends it when its only rank has ended."""
        await rank.exited()
        await self.end()

    def _signal(self, number: int) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    async def _read(self) -> None:
        async for message in read_messages(self._channel):
            match message["type"]:
                case "warm":
                    self.warm = True
                case "forked":
                    self._forked.put_nowait(message["pid"])
                case "exit":
                    future = self._exits.pop(message["pid"], None)
                    end = Exit(code=message["code"], peak_bytes=message["peak_bytes"])
                    if future is None:
                        self._early[message["pid"]] = end
                    elif not future.done():
                        future.set_result(end)
        await self.process.wait()
        for future in self._exits.values():  # the kernel has ended them with their parent
            if not future.done():
                future.set_result(Exit(code=-signal.SIGKILL))
        self._forked.put_nowait(-1)
        self._channel.close()

    async def _renew_lease(self) -> None:
        while self.running:
            await self._command(LEASE)
            await asyncio.sleep(LEASE_S / 5)

    async def _command(self, command: bytes) -> None:
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self._channel, command)
