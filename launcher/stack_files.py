"""Where the stacks of a job's ranks are kept: `logs/attempt-N.rank-K.stack.txt` in its folder."""

import re
from collections.abc import Mapping
from pathlib import Path

from launcher.attempt import RankTask
from launcher.job_folder import JobFolder, jobs_folder

NAME = re.compile(r"attempt-(\d+)\.rank-(\d+)\.stack\.txt")


def write_stacks(task: RankTask, stacks: Mapping[int, str]) -> None:
    """Keeps the stacks of the ranks of one attempt; later ones replace those before.

    Args:
        task: of any rank of the attempt.
        stacks: `{rank: text}`.
    """
    for rank, text in stacks.items():
        (jobs_folder() / task.job / "logs" / f"attempt-{task.attempt}.rank-{rank}.stack.txt").write_text(text)


def read_stacks(folder: JobFolder) -> tuple[int, dict[int, str]]:
    """The last attempt of which stacks were kept (0: none), and `{rank: text}`."""
    kept: dict[int, dict[int, Path]] = {}
    for path in folder.files("logs"):
        match = NAME.fullmatch(path.name)
        if match:
            kept.setdefault(int(match[1]), {})[int(match[2])] = path
    last = max(kept, default=0)
    return last, {rank: path.read_text() for rank, path in sorted(kept.get(last, {}).items())}
