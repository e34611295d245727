"""Where a script's saves are on hosts that share no storage, and whether all of its hosts have them.

They lie in `saved/HOST/JOB.ID` of the host's state folder, beside the clusters' folders: `up` and `down` remove those.
Nothing copies them, so hosts may have different ones, as after one was replaced; ranks that go on from different saves
may part, and nothing in JAX tells. What is in the files only the script knows: told is who has any.
"""

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from cluster.record import home
from launcher.words import number_of_bytes
from workloads.words import first_of

FOLDER = "saved"
MAX_NAMED = 8  # hosts in a line


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saves:
    """What one host has of a script's saves.

    Attributes:
        num_files: below the job's folder.
        num_bytes: of them all.
    """

    num_files: int = 0
    num_bytes: int = 0

    def __str__(self) -> str:
        files = "1 file" if self.num_files == 1 else f"{self.num_files} files"
        return f"{files}, {number_of_bytes(self.num_bytes)}" if self.num_files else "nothing"


def saves_folder(host: str, storage: str) -> Path:
    """The folder on this machine where a script saves.

    Args:
        host: name of the host, of which a machine may emulate several.
        storage: the job's, whose last part is the job's own, see `launcher.storage.storage_for`.
    """
    return home() / FOLDER / host / Path(storage).name


def look_at_saves(folder: Path) -> Saves:
    """What is there, links not followed.

    Raises:
        OSError: the folder cannot be read; one that is not there has nothing.
    """
    try:
        os.listdir(folder)  # `os.walk` would say of a disk that fails that nothing is there
    except FileNotFoundError:
        return Saves()
    sizes = []
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # of a process that is just being ended
                sizes.append(os.lstat(os.path.join(parent, name)).st_size)
    return Saves(num_files=len(sizes), num_bytes=sum(sizes))


def describe_saves(attempt: int, found: Mapping[str, Saves]) -> str:
    """What an attempt starts with, in a line.

    Args:
        attempt: its number.
        found: by host, in the order of ranks.
    """
    if not any(saves.num_files for saves in found.values()):
        return f"attempt {attempt} finds nothing that the script has saved on its hosts' disks"
    each = first_of([f"{host}: {saves}" for host, saves in found.items()], MAX_NAMED)
    return f"attempt {attempt} finds what the script has saved on each host's own disk ({each})"


def unequal_saves(found: Mapping[str, Saves]) -> str:
    """A warning where some ranks' hosts have saves and others have none; '' where all are alike.

    Args:
        found: by host, in the order of ranks.
    """
    have = [f"{host} (rank {rank})" for rank, (host, saves) in enumerate(found.items()) if saves.num_files]
    lack = [f"{host} (rank {rank})" for rank, (host, saves) in enumerate(found.items()) if not saves.num_files]
    if not have or not lack:
        return ""
    return (
        f"{first_of(lack, MAX_NAMED)} {'has' if len(lack) == 1 else 'have'} no saves of the script, and "
        f"{first_of(have, MAX_NAMED)} {'has' if len(have) == 1 else 'have'}: unless rank 0 alone saves and tells the "
        "others, a script that resumes from them may do different things on different ranks"
    )
