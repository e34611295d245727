"""The files of a job's record that only grow: what the disk does not take is kept here until it does."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
MAX_OPEN = 64  # files that are held open: each rank of each attempt has a log
MAX_LATE_BYTES = 64 * 2**20  # of logs and metrics that wait for a full disk; events, which decide, are never given up


class GrowingFiles:
    """Appends to the files of one folder. A disk that refuses raises nothing, and no line of a file is torn by it.

    Nothing is ever taken back from a file, because a client's copy is continued where it ends
    (`launcher.record_copy`): half a line that a writer which was killed has left is ended, and readers skip it.

    Args:
        folder: that they lie in.

    Attributes:
        failure: which file could not be written, and why; '' when all is on disk.
        num_given_up: bytes of logs and metrics that were too many to be kept.
    """

    def __init__(self, folder: Path):
        self.failure = ""
        self.num_given_up = 0
        self._folder = folder
        self._open: dict[str, IO[bytes]] = {}
        self._begun: set[str] = set()
        self._late: dict[str, bytearray] = {}

    def append(self, file: str, text: str) -> None:
        """Adds text to a file, on disk if it takes it, else behind what waits for it."""
        data = text.encode()
        if file not in self._late:
            self._write(file, data)
        elif file == EVENTS or sum(map(len, self._late.values())) + len(data) <= MAX_LATE_BYTES:
            self._late[file] += data
        else:
            self.num_given_up += len(data)

    def write_late(self) -> None:
        """Tries once more to write what waits."""
        for file, data in list(self._late.items()):
            del self._late[file]
            self._write(file, bytes(data))
            if file in self._late:
                return
        self.failure = ""

    def lines(self, file: str) -> Iterator[bytes]:
        """The whole lines of a file without their ends, those that wait for the disk too."""
        last = b""
        with contextlib.suppress(FileNotFoundError), (self._folder / file).open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield line[:-1]
                else:
                    last = line
        if late := self._late.get(file):
            *whole, _ = ((last if file in self._begun else b"") + late).split(b"\n")
            yield from whole

    def close(self) -> None:
        """Closes the files, which the next text opens again; what waits goes on waiting."""
        while self._open:
            _close(self._open.popitem()[1])

    def _write(self, file: str, data: bytes) -> None:
        left = memoryview(data)
        try:
            opened = self._opened(file)
            while left:
                left = left[opened.write(left) :]  # unbuffered: what it returns is what the file has
        except OSError as error:
            self.failure = f"{self._folder / file}: {error.strerror or error}"
            self._late[file] = bytearray(left)
            if stale := self._open.pop(file, None):
                _close(stale)

    def _opened(self, file: str) -> IO[bytes]:
        path = self._folder / file
        if (opened := self._open.pop(file, None)) is None:
            if path.parent != self._folder:
                path.parent.mkdir(exist_ok=True)  # somebody who made room may have removed the logs
            opened = path.open("ab", buffering=0)
        self._open[file] = opened  # the last one used is the last one closed
        if file not in self._begun and file in (EVENTS, METRICS) and _ends_torn(path):
            opened.write(b"\n")
        self._begun.add(file)
        if len(self._open) > MAX_OPEN:
            _close(self._open.pop(next(iter(self._open))))
        return opened


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # NFS says once more that the disk is full
        file.close()


def _ends_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
