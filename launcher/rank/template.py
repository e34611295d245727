"""The template of a host's ranks: `python -m launcher.rank.template`. It imports once; every rank is a fork of it.

Forking is sound because this process has one thread (BLAS libraries are told so by their variables, and it is checked
before each fork) and has touched no device; and it makes a fresh, warm process in milliseconds, as often as wanted,
where importing JAX, TFP, Flax and ArviZ anew costs ten seconds of a core each time.

It serves its agent on the descriptor in SPMD_LAUNCH_CONTROL_FD: `import` makes it warm, `fork` brings the descriptor
of a new rank along. It tells the agent `warm`, `forked` with the pid, `exit` with pid, code and the most memory that
the rank has had. It ends with its agent.
"""

import importlib
import json
import os
import random
import select
import signal
import socket
import sys
from typing import Any

from launcher.rank.control import die_with_parent
from launcher.rank.memory import peak_bytes

IMPORT, FORK, LEASE = b"i", b"f", b"l"  # what the agent says; one byte each, so that a descriptor belongs to its byte


class Template:
    """The loop of the template process.

    Args:
        channel: to the agent.
        lease_s: the longest silence of the agent that this process survives.
        modules: what to import on `import`.
    """

    def __init__(self, channel: socket.socket, lease_s: float, modules: list[str]):
        self.channel = channel
        self.lease_s = lease_s
        self.modules = modules
        self.importing = False
        self.wakeup, self._wakeup_writer = os.pipe()
        for end in (self.wakeup, self._wakeup_writer):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_writer)

    def serve(self) -> int:
        """Serves until the agent is gone; in a forked child it returns the descriptor of its own channel."""
        while True:
            busy = self.importing and bool(self.modules)
            sources: list[Any] = [self.channel, self.wakeup]
            ready, _, _ = select.select(sources, [], [], 0.0 if busy else self.lease_s)
            if self.wakeup in ready:
                self._reap()
            if self.channel in ready:
                descriptor = self._obey()
                if descriptor is not None:
                    return descriptor
            elif busy:
                self._import_next()
            elif not ready:
                sys.exit("the agent has been silent for longer than the lease")

    def _obey(self) -> int | None:
        data, descriptors, _, _ = socket.recv_fds(self.channel, 1, 1)
        if not data:
            sys.exit(0)  # the agent is gone
        if data == IMPORT:
            self.importing = True
            if not self.modules:
                self._say({"type": "warm"})
        if data == FORK:
            return self._fork(descriptors[0])
        return None

    def _import_next(self) -> None:
        importlib.import_module(self.modules.pop(0))
        if not self.modules:
            self._say({"type": "warm"})

    def _fork(self, descriptor: int) -> int | None:
        """Forks; returns the descriptor in the child and None in the template."""
        require_one_thread()
        pid = os.fork()
        if pid:
            os.close(descriptor)
            self._say({"type": "forked", "pid": pid})
            return None
        os.setsid()
        die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self.wakeup, self._wakeup_writer):
            os.close(end)
        self.channel.close()
        _reseed()
        return descriptor

    def _reap(self) -> None:
        os.read(self.wakeup, 1 << 12)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self._say({"type": "exit", "pid": pid, "code": code, "peak_bytes": peak_bytes(usage)})

    def _say(self, message: dict[str, Any]) -> None:
        self.channel.sendall(json.dumps(message).encode() + b"\n")


def require_one_thread() -> None:
    """Refuses to fork a process with several threads: a lock that another thread holds would never be free.

    Raises:
        RuntimeError: an imported module has started a thread.
    """
    tasks = "/proc/self/task"
    if os.path.isdir(tasks) and len(os.listdir(tasks)) > 1:
        raise RuntimeError(f"an imported module has started {len(os.listdir(tasks)) - 1} thread(s): cannot fork a rank")


def _reseed() -> None:
    """Gives the child its own entropy, as a process that was started has; workloads use neither of these."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def main() -> None:
    die_with_parent()
    channel = socket.socket(fileno=int(os.environ["SPMD_LAUNCH_CONTROL_FD"]))
    lease_s = float(os.environ["SPMD_LAUNCH_LEASE_S"])
    template = Template(channel, lease_s, os.environ.get("SPMD_LAUNCH_PREIMPORT", "").split())
    descriptor = template.serve()
    from launcher.rank.main import run_rank

    run_rank(descriptor, lease_s)


if __name__ == "__main__":
    main()
