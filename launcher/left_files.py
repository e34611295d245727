"""The agent's side of the files that a rank has left in its output folder: which there are, and those that stay."""

import contextlib
import dataclasses
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFDIR: "a folder",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeftFiles:
    """What a rank has left.

    Attributes:
        files: `{path relative to its output folder: bytes}`.
        unreadable: `{path: why}` of what is there and can be no file of the job's.
    """

    files: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unreadable: Mapping[str, str] = dataclasses.field(default_factory=dict)


def list_files(folder: Path) -> LeftFiles:
    """Looks at every name below an output folder; what cannot be looked at hides no other."""
    files: dict[str, int] = {}
    unreadable: dict[str, str] = {}

    def cannot_enter(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed meanwhile: what was in it was not to stay
            unreadable[_name(Path(error.filename or folder), folder)] = reason(error)

    for place, folders, names in os.walk(folder, onerror=cannot_enter):
        folders.sort()
        for path in (Path(place, name) for name in folders if Path(place, name).is_symlink()):
            if not path.resolve().is_relative_to(folder.resolve()):  # else its files come under their own names
                unreadable[_name(path, folder)] = "a link to a folder elsewhere"
        for path in (Path(place, name) for name in sorted(names)):
            try:
                state = path.stat()
            except OSError as error:
                unreadable[_name(path, folder)] = "a link to nothing" if path.is_symlink() else reason(error)
                continue
            if stat.S_ISREG(state.st_mode):
                files[_name(path, folder)] = state.st_size
            else:
                unreadable[_name(path, folder)] = KINDS.get(stat.S_IFMT(state.st_mode), "no file")
    return LeftFiles(files=files, unreadable=unreadable)


def read_piece(path: Path, offset: int, length: int) -> bytes:
    """A part of a file.

    Raises:
        OSError: it cannot be read, or is another kind of thing, which could keep its reader waiting for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind != stat.S_IFREG:
            raise OSError(KINDS.get(kind, "no file"))
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(offset)
            return file.read(length)
    finally:
        os.close(descriptor)


def set_aside(output: Path, place: Path, fetched: Iterable[str]) -> str:
    """Moves an output folder to where it stays when the attempt is forgotten, and removes what has been fetched.

    Args:
        output: the folder; it is moved as a whole, so that it does not matter what in it can be read.
        place: its new path, on the same disk.
        fetched: paths relative to it.

    Returns:
        Its new path; '' if nothing was left in it.

    Raises:
        OSError: it stays where it is.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    output.rename(place)
    for name in fetched:
        with contextlib.suppress(OSError):
            (place / name).unlink()
    _remove_empty(place)
    return str(place) if place.exists() else ""


def _remove_empty(folder: Path) -> None:
    """Removes the folders that nothing is in; links are not followed, as one may lead to a file server that is gone."""
    with contextlib.suppress(OSError):  # it cannot be entered, or is not empty
        with os.scandir(folder) as entries:
            inner = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for each in inner:
            _remove_empty(each)
        folder.rmdir()


def reason(error: OSError) -> str:
    """Why a file cannot be had, in the kernel's words."""
    return "removed meanwhile" if isinstance(error, FileNotFoundError) else error.strerror or str(error)


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
