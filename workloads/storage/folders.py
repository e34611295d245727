"""Where steps lie: names, what is there, and what is left over.

A step is a folder `step_00000040.ATTEMPT.x7f3a9` of the storage. No two saves have the same folder, so none writes what
another reads, and nothing is ever renamed (object stores cannot). A folder counts when its `manifest.json` is there,
which is written last.
"""

import contextlib
import dataclasses
import re
import secrets
from collections.abc import Collection, Iterator, Sequence

from etils import epath

from workloads.durable import as_path

MANIFEST = "manifest.json"
STATE = "state"  # what Orbax writes

_NAME = re.compile(r"step_(\d{8,})\..+\.x[0-9a-f]{6}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepFolder:
    """A folder of the storage that is named like a step.

    Attributes:
        step: steps (or draws) that its state has behind it.
        path: of the folder.
        committed: whether its manifest is there, or nobody can tell.
    """

    step: int
    path: epath.Path
    committed: bool


def new_name(step: int, attempt_id: str) -> str:
    """A name that no other save has had."""
    return f"step_{step:08d}.{attempt_id}.x{secrets.token_hex(3)}"


def step_of(name: str) -> int:
    """The step in a name that `new_name` has given."""
    return int(name.removeprefix("step_").partition(".")[0])


def find_folders(storage: str) -> list[StepFolder]:
    """All step folders, the newest step first.

    Raises:
        OSError: the storage cannot be read.
    """
    try:
        paths = list(as_path(storage).iterdir())
    except FileNotFoundError:
        return []
    named = [(match, path) for path in paths if (match := _NAME.fullmatch(path.name))]
    found = [StepFolder(step=int(match[1]), path=path, committed=_may_count(path)) for match, path in named]
    return sorted(found, key=lambda folder: (folder.step, folder.path.name), reverse=True)


def _may_count(folder: epath.Path) -> bool:
    """Whether a step is not known to be half-written: one whose manifest nobody can look for must not be removed."""
    try:
        return is_there(folder / MANIFEST)
    except OSError:
        return True


def is_there(path: epath.Path) -> bool:
    """Whether there is such a file; `exists` says no too where nobody can tell.

    Raises:
        OSError: the storage cannot be read.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def latest_step(storage: str) -> int | None:
    """The newest committed step under `storage` (a folder or URL), or None; its bits are verified when restored."""
    return next((folder.step for folder in find_folders(storage) if folder.committed), None)


def superseded(found: Sequence[StepFolder], step: int, keep: int, damaged: Collection[str] = ()) -> list[StepFolder]:
    """What may go now that `step` has been committed.

    Half-written folders; other folders of the same step; and older steps but for the newest `keep` - 1 that are not
    known to be damaged. Newer steps stay: the run that came back to before them comes by them again.

    Args:
        found: what was there before `step` was committed.
        step: the newest good step for certain.
        keep: how many steps stay, at least 1.
        damaged: names of folders whose steps were found to be so.
    """
    good = [folder for folder in found if folder.committed and folder.path.name not in damaged]
    older = sorted({folder.step for folder in good if folder.step < step}, reverse=True)
    kept = set(older[: max(keep, 1) - 1])
    stays = [folder for folder in good if folder.step in kept]
    return [folder for folder in found if not folder.committed or (folder.step <= step and folder not in stays)]


def remove(folder: epath.Path) -> None:
    """Removes a step, its manifest first, so that it never looks whole; what cannot be removed stays for the next."""
    with contextlib.suppress(OSError):
        (folder / MANIFEST).unlink(missing_ok=True)
        folder.rmtree(missing_ok=True)


def files_below(folder: epath.Path) -> Iterator[tuple[str, epath.Path]]:
    """Every file with its path relative to `folder`."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from ((f"{path.name}/{name}", file) for name, file in files_below(path))
        else:
            yield path.name, path
