"""What a command has written into its copy of the user's folder: rank 0's comes back with the job's results."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from launcher.user_folder import NEVER
from launcher.words import number_of_bytes

LIMIT_BYTES = 2**30
NUM_NAMED = 5


def bring_back(work: Path, results: Path, limit_bytes: int = LIMIT_BYTES) -> list[str]:
    """Moves what is new or changed to the results, small files first; what is there already under that name stays.

    Args:
        work: the copy of the folder, as the command has left it.
        results: what the command left on purpose.
        limit_bytes: of all that is moved.

    Returns:
        Lines that say what does not come back; empty if all does.
    """
    room, left = limit_bytes, []
    for path, num_bytes in sorted(_written(work), key=lambda found: (found[1], found[0])):
        target = results / path.relative_to(work)
        if target.exists():
            continue
        if num_bytes > room:
            left.append(f"{path.relative_to(work)} ({number_of_bytes(num_bytes)})")
            continue
        room -= num_bytes
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
    if not left:
        return []
    more = f" and {len(left) - NUM_NAMED} more" if len(left) > NUM_NAMED else ""
    return [
        f"spmd-launch: more than {number_of_bytes(limit_bytes)} was written into the folder, and this is removed with "
        f"it: {', '.join(left[-NUM_NAMED:])}{more}; what is to stay belongs in SPMD_LAUNCH_STORAGE_PATH or _JOB_DIR"
    ]


def _written(work: Path) -> Iterator[tuple[Path, int]]:
    """Files that are not as they were unpacked: those have no time of change, see `launcher.user_folder`."""
    for folder, folders, names in os.walk(work):
        folders[:] = [name for name in folders if name not in NEVER]
        for name in names:
            path = Path(folder, name)
            state = path.lstat()
            if path.is_file() and not path.is_symlink() and state.st_mtime:
                yield path, state.st_size
