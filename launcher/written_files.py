"""What a command has written into its copy of the user's folder: rank 0's comes back with the job's results."""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from launcher.user_folder import NEVER
from launcher.words import file_name, number_of_bytes

LIMIT_BYTES = 2**30
NUM_NAMED = 5
UNPACKED = "unpacked.json"  # beside the copy: the bytes of each file as it was, by its path


def note_unpacked(work: Path) -> None:
    """Notes what is in a folder that was just unpacked, so that `bring_back` knows what was not."""
    sizes = {path.relative_to(work).as_posix(): path.lstat().st_size for path in work.rglob("*")}
    (work.parent / UNPACKED).write_text(json.dumps(sizes))


def bring_back(work: Path, results: Path, limit_bytes: int = LIMIT_BYTES) -> list[str]:
    """Moves what is new or changed to the results, small files first; what is there already under that name stays.

    Args:
        work: the copy of the folder, as the command has left it; `note_unpacked` has seen it before.
        results: what the command left on purpose.
        limit_bytes: of all that is moved.

    Returns:
        Lines that say what does not come back, and why; empty if all does.

    Raises:
        OSError, ValueError: nothing comes back, because the note is gone, or is none.
    """
    room, too_much, failed = limit_bytes, [], []
    before = json.loads((work.parent / UNPACKED).read_text())

    def cannot_enter(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed meanwhile, by what the command has left running
            failed.append(f"{file_name(Path(error.filename or work).relative_to(work))} ({error.strerror or error})")

    for path, num_bytes in sorted(_written(work, before, cannot_enter), key=lambda found: (found[1], found[0])):
        target, name = results / path.relative_to(work), file_name(path.relative_to(work))
        try:
            if target.exists():
                continue
            if num_bytes > room:
                too_much.append(f"{name} ({number_of_bytes(num_bytes)})")
                continue
            _move(path, target)
            room -= num_bytes
        except OSError as error:
            failed.append(f"{name} ({error.strerror or error})")
    lines = []
    if too_much:
        lines.append(
            f"spmd-launch: more than {number_of_bytes(limit_bytes)} was written into the folder, and this is removed "
            f"with it: {_some(too_much)}; what is to stay belongs in SPMD_LAUNCH_STORAGE_PATH or _JOB_DIR"
        )
    if failed:
        lines.append(f"spmd-launch: written into the folder, and removed with it, as it cannot come: {_some(failed)}")
    return lines


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return f"{', '.join(names[-NUM_NAMED:])}{more}"


def _move(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.rename(target)
    except OSError:  # its folder may not be changed, or is another disk
        try:
            shutil.copyfile(path, target)
        except OSError:
            target.unlink(missing_ok=True)
            raise


def _written(
    work: Path, before: Mapping[str, int], cannot_enter: Callable[[OSError], None]
) -> Iterator[tuple[Path, int]]:
    """Files that are not as they were unpacked: those have no time of change, see `launcher.user_folder`.

    What was copied from them with its times (`cp -a`, `shutil.copy2`) has none either; so their names and sizes count.
    """
    for folder, folders, names in os.walk(work, onerror=cannot_enter):
        folders[:] = [name for name in folders if name not in NEVER]
        for name in names:
            path = Path(folder, name)
            try:
                state = path.lstat()
            except OSError:  # removed meanwhile, by what the command has left running
                continue
            same = not state.st_mtime and before.get(path.relative_to(work).as_posix()) == state.st_size
            if stat.S_ISREG(state.st_mode) and not same:
                yield path, state.st_size
