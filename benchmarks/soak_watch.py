"""Follows a job's record while it is written, on the clock of who watches: how far it is, what happened, and when."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PERIOD_S = 0.1
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


class Tail:
    """A file of JSON objects, one a line, that grows.

    Args:
        path: it may not be there yet.
    """

    def __init__(self, path: Path):
        self._path = path
        self._position = 0

    def read(self) -> list[dict[str, Any]]:
        """The lines that are new and whole."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class JobWatch:
    """One job, watched from its submission on.

    Its record tells times too, but a supervisor that is started again cannot count those in which there was none.

    Args:
        folder: of the job.

    Attributes:
        started: when it was submitted, on this process's monotonic clock.
        events: every event so far, each with `seen`, when it was read, on the same clock.
        step: the furthest that any rank has reported.
        reports: `(at, step)` of rank 0, `at` as recorded.
    """

    def __init__(self, folder: Path):
        self.started = time.monotonic()
        self.events: list[dict[str, Any]] = []
        self.step = 0
        self.reports: list[tuple[float, int]] = []
        self._events = Tail(folder / "events.jsonl")
        self._metrics = Tail(folder / "metrics.jsonl")

    @property
    def ended(self) -> float | None:
        """When it was seen to have ended; None: it has not yet."""
        ends = [event["seen"] for event in self.events if event["type"] == "state" and event["state"] in ENDED]
        return ends[-1] if ends else None

    def until(self, reached: Callable[[], Any], timeout_s: float) -> Any:
        """Waits until `reached()` is true and returns it; what it is then if the job ends or `timeout_s` is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.look()
            value = reached()
            if value or self.ended is not None or time.monotonic() > deadline:
                return value
            time.sleep(PERIOD_S)

    def look(self) -> None:
        """Reads what is new."""
        for row in self._metrics.read():
            self.step = max(self.step, row["step"])
            if row["rank"] == 0:
                self.reports.append((row["at"], row["step"]))
        seen = time.monotonic()
        self.events += [{**event, "seen": seen} for event in self._events.read()]

    def first(self, kind: str, after: int) -> dict[str, Any] | None:
        """The first event of a type among those from index `after` on."""
        return next((event for event in self.events[after:] if event["type"] == kind), None)

    def steps_per_s(self) -> float:
        """Of the second half of what rank 0 has reported: without compilation, and without what comes after.

        Raises:
            RuntimeError: it has reported less than three times.
        """
        if len(self.reports) < 3:
            raise RuntimeError(f"{len(self.reports)} reports are too few to tell the steps per second; use more steps")
        (start_s, first), (end_s, last) = self.reports[len(self.reports) // 2], self.reports[-1]
        return (last - first) / (end_s - start_s)
