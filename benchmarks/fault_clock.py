"""Times what a job puts on record by a clock of one's own, where the record's stands still while nobody keeps it.

A supervisor that is started again counts on from the last event that it finds: by the record's clock there is no time
between the end of one and the beginning of the next.
"""

import json
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from soak_watch import Tail

PERIOD_S = 0.02
Lines = list[dict[str, Any]]


class Follower:
    """Reads a job's record while it is written, in a process of its own: this one forks, and may have no threads.

    Args:
        folder: of the job; it may not be there yet.
    """

    def __init__(self, folder: Path):
        words = [sys.executable, __file__, str(folder)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:
            self._process.kill()

    def stop(self) -> tuple[Lines, Lines]:
        """Events and reports until now; `at` is when each was seen, in seconds since the follower began."""
        printed, _ = self._process.communicate()  # the end of its standard input is the word to stop
        events, reports = json.loads(printed)
        return events, reports


def main() -> None:
    began = time.monotonic()
    files = [Tail(Path(sys.argv[1]) / name) for name in ("events.jsonl", "metrics.jsonl")]
    lines: list[Lines] = [[] for _ in files]
    over = False
    while not over:
        over = bool(select.select([sys.stdin], [], [], PERIOD_S)[0])
        at = round(time.monotonic() - began, 4)
        for file, seen in zip(files, lines, strict=True):
            seen += [{**line, "at": at} for line in file.read()]
    print(json.dumps(lines))


if __name__ == "__main__":
    main()
