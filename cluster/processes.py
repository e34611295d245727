"""Processes named by pid and start time, so that a reused pid is never mistaken for ours, let alone ended."""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

# Every process of a cluster inherits this variable, whoever started it: what `down` looks for at the end. (Ray's own
# rename themselves and lose it; they are known by their session, see `marked_processes`.)
MARKER = "SPMD_LAUNCH_CLUSTER_ID"


@dataclasses.dataclass(frozen=True, order=True)
class ProcessId:
    """A process that is certainly the one meant.

    Attributes:
        pid: the kernel's number, which may be used again after the process has ended.
        started: start time in clock ticks since boot (Linux), else seconds since the epoch; never compared with a
            clock, only for equality.
    """

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The identity of a running process, or None if there is none with this pid."""
        started = _start_time(pid)
        return None if started is None else cls(pid, started)

    @classmethod
    def current(cls) -> "ProcessId":
        identity = cls.of(os.getpid())
        assert identity is not None
        return identity

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "ProcessId":
        return cls(value["pid"], value["started"])

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def alive(self) -> bool:
        """Whether this very process runs; a zombie does not."""
        return _start_time(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):  # ended between the look and the signal
                os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Sends a signal to the process group that this process leads, unless the process has ended."""
        if self.alive():
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                self.signal(number)  # it leads no group

    def wait(self, timeout_s: float) -> bool:
        """Waits until the process has ended; False if it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def marked_processes(cluster_id: str, session: ProcessId | None = None) -> list[ProcessId]:
    """All processes of this user that belong to a cluster.

    Args:
        cluster_id: looked for in their environment.
        session: the process that leads, or led, the session of the cluster's Ray processes: those rename themselves,
            which wipes their environment, and Ray's agents outlive their raylet by minutes.
    """
    if session is not None and not session.alive() and ProcessId.of(session.pid) is not None:
        session = None  # the number belongs to another process now, and so to another session
    found = []
    for process in psutil.process_iter():
        try:
            in_session = session is not None and os.getsid(process.pid) == session.pid
            if process.pid != os.getpid() and (in_session or process.environ().get(MARKER) == cluster_id):
                identity = ProcessId.of(process.pid)
                if identity is not None:
                    found.append(identity)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, ProcessLookupError):
            continue  # ended meanwhile, or another user's
    return found


def end_processes(identities: Iterable[ProcessId], grace_s: float = 2.0) -> None:
    """Ends processes: SIGTERM, then SIGKILL for those that still run after `grace_s`."""
    remaining = list(identities)
    for identity in remaining:
        identity.signal(signal.SIGTERM)
        identity.signal(signal.SIGCONT)  # a stopped process cannot act on SIGTERM
    deadline = time.monotonic() + grace_s
    for identity in remaining:
        identity.wait(max(0.0, deadline - time.monotonic()))
    for identity in remaining:
        identity.signal(signal.SIGKILL)
    for identity in remaining:
        identity.wait(5.0)


def _start_time(pid: int) -> float | None:
    stat = Path(f"/proc/{pid}/stat")
    try:
        # The command's name is in parentheses and may hold spaces; state is field 3, start time field 22.
        # It is no text: any bytes make a name, and 15 of them may end inside a character.
        fields = stat.read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else float(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    try:  # no /proc: macOS
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None
