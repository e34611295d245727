"""Processor time of threads beside a step: those of Python but the main one, and what writes checkpoints."""

import os
import threading

TASKS = "/proc/self/task"
WRITERS = "ts_"  # tensorstore's threads, with which Orbax reads and writes, are called `ts_pool_worker`
NANOSECONDS = 1e-9


class BackgroundCpu:
    """Adds up what threads of this process have used that do not compute a step, from look to look.

    A checkpoint is compressed, written and committed while the next steps run, most of it by rank 0. Where the
    system does not tell it by thread, as outside Linux, it is 0.
    """

    def __init__(self) -> None:
        self._used: dict[int, int] = {}  # nanoseconds, of each thread
        self._names: dict[int, str] = {}
        self._total = 0

    def seconds(self) -> float:
        """Processor time so far, in seconds; of a thread that has ended, what it had used at the look before."""
        found = {thread: _nanoseconds(thread) for thread in self._threads()}
        used = {thread: now for thread, now in found.items() if now is not None}
        self._total += sum(now - self._used.get(thread, 0) for thread, now in used.items())
        self._used = used
        return self._total * NANOSECONDS

    def _threads(self) -> set[int]:
        """Kernel's numbers of these threads."""
        try:
            threads = {int(thread) for thread in os.listdir(TASKS)}
        except OSError:
            return set()
        # A thread names itself just after it has begun, so it is asked at the second look.
        known = self._names
        self._names = {thread: known[thread] or _name(thread) if thread in known else "" for thread in threads}
        # A callback of a program is part of a step: it runs in a thread of XLA's, which Python calls by such a name.
        pythons = {one.native_id for one in threading.enumerate() if not one.name.startswith("Dummy-")}
        beside = pythons - {threading.main_thread().native_id}
        return {thread for thread in threads if thread in beside or self._names[thread].startswith(WRITERS)}


def _name(thread: int) -> str:
    return _read(thread, "comm").decode(errors="replace")


def _nanoseconds(thread: int) -> int | None:
    """What a thread has used; None if it has ended meanwhile."""
    words = _read(thread, "schedstat").split()
    return int(words[0]) if words else None


def _read(thread: int, file: str) -> bytes:
    """Ten times a second for each of them, so without a `Path`; b"" if the thread has ended."""
    try:
        with open(f"{TASKS}/{thread}/{file}", "rb", buffering=0) as opened:
            return opened.read()
    except OSError:
        return b""
