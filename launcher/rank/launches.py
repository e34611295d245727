"""What is told of this rank's launches: in its black box at each one, and by the progress thread while it may hang."""

from pathlib import Path

from launcher.rank.black_box import BlackBox
from launcher.rank.control import Message
from launcher.rank.progress import Progress
from workloads.agreement.launches import LaunchLog


def tell_launches(log: LaunchLog, black_box: Path, progress: Progress) -> None:
    """Ties a log to what tells of it.

    Args:
        log: of this rank, still empty.
        black_box: a file, made anew.
        progress: of this rank.
    """
    log.keep = BlackBox(black_box).write
    progress.launches = lambda: launches_so_far(log)


def launches_so_far(log: LaunchLog) -> Message:
    """As `launcher.launch_ledger` takes it."""
    found = log.snapshot()
    runs = [list(run) for run in found.runs]
    name = str(runs[-1][0]) if runs else ""
    return {"launches": found.count, "program": name, "launch_hash": found.digest, "tail": runs}
