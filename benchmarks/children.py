"""Child processes of the benchmark: each is timed from its prompt, bounded in time, and ended by its pid."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
END_TIMEOUT_S = 60.0


class Child:
    """A Python process that answers with lines of JSON on standard output; its standard error goes to a file.

    Args:
        arguments: of the interpreter.
        folder: where it runs, and where `errors` lies.
        environment: variables beside the inherited ones; RAY_* and SPMD_LAUNCH_* are not inherited.
        python: another interpreter than this one's.

    Attributes:
        prompt: seconds since the epoch, taken before the process was made.
    """

    def __init__(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], python: str = sys.executable
    ):
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "SPMD_LAUNCH_"))}
        self.errors = folder / f"stderr-{time.monotonic_ns()}"
        self._buffer = b""
        with self.errors.open("wb") as errors:
            self.prompt = time.time()
            self.process = subprocess.Popen(
                [python, *arguments],
                cwd=folder,
                env={**inherited, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The next line of standard output that is a JSON object; other lines (gloo's) are passed over.

        Raises:
            RuntimeError: the process ended, or said nothing for `timeout_s`; with the end of its standard error.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if not newline:
                self._read(deadline)
                continue
            self._buffer = rest
            if line.startswith(b"{"):
                value: dict[str, Any] = json.loads(line)
                return value

    def wait(self, timeout_s: float) -> str:
        """Waits for a good end; returns the rest of standard output.

        Raises:
            RuntimeError: it failed, or still ran after `timeout_s`.
        """
        try:
            output, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{self._name()} still ran after {timeout_s:g} s:\n{self._tail()}") from error
        if self.process.returncode:
            raise RuntimeError(f"{self._name()} ended with {self.process.returncode}:\n{self._tail()}")
        return (self._buffer + output).decode(errors="replace")

    def end(self) -> None:
        """Ends the process and every descendant of it: closed input asks, SIGTERM insists, SIGKILL ends."""
        descendants = self._descendants()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_TIMEOUT_S if number is None else 5.0)
                break
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # psutil looks at the start time: a pid that was used again is left alone
        if self.process.stdout is not None:
            self.process.stdout.close()

    def cpu_s(self) -> float:
        """CPU seconds that the process and its descendants have used so far."""
        return cpu_s([self.process.pid, *(process.pid for process in self._descendants())])

    def _descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _read(self, deadline: float) -> None:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise RuntimeError(f"{self._name()} did not answer in time:\n{self._tail()}")
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            raise RuntimeError(f"{self._name()} ended with {self.process.wait(END_TIMEOUT_S)}:\n{self._tail()}")
        self._buffer += data

    def _name(self) -> str:
        return f"process {self.process.pid} ({' '.join(map(str, self.process.args[1:]))[:80]})"  # type: ignore[index]

    def _tail(self) -> str:
        return "\n".join(self.errors.read_text(errors="replace").splitlines()[-15:])


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds, user and system, that these processes have used; those that have ended count as none."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total
