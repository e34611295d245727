"""The keeper: one detached Ray actor on the head, which has a copy of every checkpoint where no storage is shared.

It alone writes there. Agents bring the files of their ranks piece by piece; a file has its name only when all of it is
on the disk with the digest that its rank computed, and a step counts only when all files of all ranks have their names.
It remembers nothing, so that it may be ended and started again at any moment.
"""

import asyncio
import collections
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etils import epath

from launcher.process_watch import end_with_raylet
from workloads.durable import as_path
from workloads.errors import DamageError
from workloads.fence import check_fence, write_fence
from workloads.storage.commit import begin_step, commit_step
from workloads.storage.folders import MANIFEST, STATE, find_folders, remove
from workloads.storage.index import leaves_in
from workloads.storage.manifest import Files, Manifest, file_facts, list_files, parse_manifest, read_manifest
from workloads.storage.merge import merge_processes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """Who wants to write.

    Attributes:
        storage: the job's folder on the head.
        attempt, attempt_id: as the fence knows them.
    """

    storage: str
    attempt: int
    attempt_id: str


class Keeper:
    """What the head does; every write may be repeated, as Ray does after a restart.

    All of its methods raise OSError where the head's disk fails, and those that write FencedError to an old attempt.
    """

    def __init__(self) -> None:
        # An attempt that begins waits for the commit that is under way, and after that there is none of an older one.
        self._turns: dict[str, asyncio.Lock] = collections.defaultdict(asyncio.Lock)

    async def fence(self, claim: Claim) -> None:
        """Shuts out every attempt before this one."""
        async with self._turns[claim.storage]:
            await asyncio.to_thread(write_fence, claim.storage, claim.attempt, claim.attempt_id)

    async def begin(self, claim: Claim, step: int) -> str:
        """Makes a new step's folder; returns its name."""
        async with self._turns[claim.storage]:
            return await asyncio.to_thread(begin_step, claim.storage, step, claim.attempt, claim.attempt_id)

    async def put(self, claim: Claim, path: str, offset: int, data: bytes, facts: dict[str, Any] | None) -> None:
        """Takes a piece of a file.

        Args:
            claim: of the attempt.
            path: of the file, below the job's folder.
            offset: of the piece, in bytes.
            data: the piece.
            facts: with the last piece: what the rank says of the file, which must be true of what has arrived.
        """
        await asyncio.to_thread(_put, claim, path, offset, data, facts)

    async def commit(
        self, claim: Claim, name: str, manifest: dict[str, Any], keep: int, damaged: Sequence[str] = ()
    ) -> list[str]:
        """Makes a step count, all of whose files are here; returns the names of the steps that are kept."""
        async with self._turns[claim.storage]:
            return await asyncio.to_thread(_commit, claim.storage, name, Manifest.from_json(manifest), keep, damaged)

    async def discard(self, claim: Claim, name: str) -> None:
        """Removes a step that came to nothing."""
        async with self._turns[claim.storage]:
            await asyncio.to_thread(_discard, claim, name)

    async def find(self, storage: str) -> list[tuple[int, str, bool]]:
        """All steps, the newest first: step, name, whether it counts."""
        found = await asyncio.to_thread(find_folders, storage)
        return [(folder.step, folder.path.name, folder.committed) for folder in found]

    async def manifest(self, storage: str, name: str) -> str:
        """The text of a step's manifest; DamageError if it is not what was written."""
        try:
            text = await asyncio.to_thread((Path(storage) / name / MANIFEST).read_text, errors="replace")
        except FileNotFoundError as error:
            raise DamageError(f"{MANIFEST} is gone on the head") from error
        parse_manifest(text)
        return text

    async def get(self, storage: str, path: str, offset: int, length: int) -> bytes:
        """A piece of a file below the job's folder."""
        return await asyncio.to_thread(_get, Path(storage) / path, offset, length)

    async def leaves_in(self, storage: str, name: str, file: str) -> str:
        """Which leaves a file of a step holds, in brackets; '' if none, or nobody can tell."""
        return await asyncio.to_thread(_leaves_in, as_path(storage) / name, file)


class KeeperActor(Keeper):
    """Runs on the head as an async Ray actor, whose process ends with its raylet."""

    def __init__(self, owns_ray: bool) -> None:
        super().__init__()
        end_with_raylet(owns_ray)


def _put(claim: Claim, path: str, offset: int, data: bytes, facts: dict[str, Any] | None) -> None:
    check_fence(claim.storage, claim.attempt, claim.attempt_id)
    target = Path(claim.storage) / path
    if not (Path(claim.storage) / path.split("/", maxsplit=1)[0] / STATE).exists():
        raise FileNotFoundError(f"{path}: this step was not begun, or it was given up")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.part")
    with partial.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(data)
        if facts is None:
            return
        file.flush()
        os.fsync(file.fileno())
    found = file_facts(as_path(str(partial)), digest=True)
    if found != facts:
        partial.unlink()
        raise OSError(f"{path} has arrived as {found}, and its rank has written {facts}")
    partial.replace(target)


def _get(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _leaves_in(folder: epath.Path, file: str) -> str:
    return leaves_in(folder, file, list(read_manifest(folder).leaves))


def _commit(storage: str, name: str, manifest: Manifest, keep: int, damaged: Sequence[str]) -> list[str]:
    folder = Path(storage) / name
    check_fence(storage, manifest.attempt, manifest.attempt_id)
    _require_all(folder, manifest.files)
    for partial in folder.rglob("*.part"):  # of a piece that came twice
        partial.unlink()
    merge_processes(folder / STATE)
    # What the ranks have written has the digests that they computed; what was joined here gets its own.
    files = list_files(as_path(str(folder)), known=manifest.files)
    for below in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        _sync_names(below)
    commit_step(storage, name, dataclasses.replace(manifest, files=files), keep=keep, damaged=damaged)
    return [found.path.name for found in find_folders(storage) if found.committed]


def _require_all(folder: Path, files: Files) -> None:
    """Whether all files of all ranks are here; what has its name has been verified."""
    for name, facts in files.items():
        path = folder / name
        if not path.exists() or path.stat().st_size != facts["size"]:
            raise OSError(f"{name} has not arrived on the head in its {facts['size']} bytes: nothing was committed")


def _sync_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(claim: Claim, name: str) -> None:
    check_fence(claim.storage, claim.attempt, claim.attempt_id)
    remove(as_path(claim.storage) / name)
