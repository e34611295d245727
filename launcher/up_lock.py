"""One `up` of a cluster at a time, of all commands of one state folder: two would ask for the same machines.

The kernel lets go of a dead command's lock. The file stays, as whoever waits for it has it open.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cluster.provider import Say
from cluster.record import home


@contextlib.contextmanager
def alone(name: str, say: Say) -> Iterator[None]:
    """While this is entered no other command brings up the cluster of that name; waits until none does.

    Args:
        name: of the cluster.
        say: is told that there is one to wait for.
    """
    with _opened(name) as file:
        if not _take(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
            say(f"another command brings up {name}: waiting until it is done")
            _take(file, fcntl.LOCK_EX)
        yield


def is_held(name: str) -> bool:
    """Whether a command is in `alone` for that name now."""
    if not _path(name).exists():
        return False
    with _opened(name) as file:
        return not _take(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _opened(name: str) -> IO[str]:
    for folder in (home(), _path(name).parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return _path(name).open("a")


def _take(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: then nobody holds any
        return True
    return True


def _path(name: str) -> Path:
    return home() / "locks" / name
