"""Where a rank writes and reads steps: in a place that all ranks share, or on its own host's disk.

With a disk on each host, the head keeps a copy of every file, and a step counts when its manifest is there. A rank
reaches the head through its agent, on the descriptor that it has.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from etils import epath

from workloads.durable import as_path
from workloads.errors import DamageError, FencedError
from workloads.fence import FENCE, read_fence
from workloads.storage.commit import begin_step, commit_step
from workloads.storage.folders import MANIFEST, STATE, StepFolder, files_below, find_folders, is_there, remove
from workloads.storage.manifest import Files, Manifest, check_files, file_facts, list_files, read_manifest

Ask = Callable[[dict[str, Any]], dict[str, Any]]
Event = dict[str, Any]

_MADE_BY_FIRST = "array_metadatas"  # Orbax's other processes wait until its first one has made this folder
LISTING_PATIENCE_S = 60.0  # for as long an NFS client may show a folder as it was (`acdirmax`)
LISTING_PERIOD_S = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writer:
    """Who writes.

    Attributes:
        rank: this process; rank 0 begins and commits for all.
        attempt, attempt_id: as the fence knows them.
        keep: how many of the newest good steps stay.
    """

    rank: int
    attempt: int
    attempt_id: str
    keep: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivered:
    """What a rank has handed in of a step.

    Attributes:
        files: that it has written; with their digests where they are copied to the head.
        copied_bytes: that went to the head.
    """

    files: Files = dataclasses.field(default_factory=dict)
    copied_bytes: int = 0


class Store(Protocol):
    """What saving and restoring ask of a place; all of it may raise OSError, and writing FencedError."""

    def begin(self, step: int) -> str:
        """Rank 0: makes a new step; returns its name."""

    def open(self, name: str) -> epath.Path:
        """Every rank: the folder to write to."""

    def deliver(self, name: str) -> Delivered:
        """Every rank, once its files are written: they are where they count when this returns."""

    def commit(self, name: str, manifest: Manifest, finalize: Callable[[epath.Path], None]) -> list[str]:
        """Rank 0, when all have delivered: the manifest, last; returns what `prune` must be told."""

    def prune(self, kept: Sequence[str]) -> None:
        """Every rank, after a commit."""

    def discard(self, name: str) -> None:
        """Every rank: a step that came to nothing."""

    def find(self) -> list[StepFolder]:
        """Rank 0: all steps, the newest first."""

    def bring(self, folder: StepFolder) -> Manifest:
        """Every rank: makes the files of a step readable here, as they were written.

        Raises DamageError where the step is known not to be good; an OSError tells nothing of the step.
        """

    def distrust(self, folder: StepFolder) -> None:
        """Every rank: a step was found damaged; it takes no place among those that are kept."""


class SharedStore:
    """A folder or URL that all ranks reach; see `Store`."""

    def __init__(self, storage: str, writer: Writer):
        self._storage = storage
        self._writer = writer
        self._damaged: set[str] = set()

    def begin(self, step: int) -> str:
        return begin_step(self._storage, step, self._writer.attempt, self._writer.attempt_id)

    def open(self, name: str) -> epath.Path:
        return as_path(self._storage) / name

    def deliver(self, name: str) -> Delivered:
        return Delivered(files=_written_by(self._writer.rank, self.open(name)))

    def commit(self, name: str, manifest: Manifest, finalize: Callable[[epath.Path], None]) -> list[str]:
        folder = self.open(name)
        _wait_until_listed(folder, manifest.files)
        finalize(folder / STATE)
        files = list_files(folder)
        _require_all(manifest.files, files)
        manifest = dataclasses.replace(manifest, files=files)
        commit_step(self._storage, name, manifest, keep=self._writer.keep, damaged=self._damaged)
        return []

    def prune(self, kept: Sequence[str]) -> None:
        """Rank 0 has done so for all."""

    def discard(self, name: str) -> None:
        if self._writer.is_first:
            remove(self.open(name))

    def find(self) -> list[StepFolder]:
        found = find_folders(self._storage)
        me = self._writer
        if not found and me.attempt > 1 and (fence := read_fence(self._storage)) != (me.attempt, me.attempt_id):
            has = "no" if fence is None else f"another attempt's ({fence[1]})"
            raise OSError(f"{self._storage} has {has} {FENCE}: it is not this job's storage, or not mounted")
        return found

    def bring(self, folder: StepFolder) -> Manifest:
        if not self._writer.is_first:
            if not is_there(folder.path / MANIFEST):  # where rank 0 has just seen it
                raise OSError(f"{folder.path / MANIFEST} is not there: it is not the storage, or not mounted")
            return read_manifest(folder.path)
        manifest = read_manifest(folder.path)
        check_files(folder.path, manifest)
        return manifest

    def distrust(self, folder: StepFolder) -> None:
        self._damaged.add(folder.path.name)


class HostStore:
    """A folder on this host's disk, with copies of all files on the head; see `Store`.

    Args:
        storage: the folder.
        writer: who writes.
        ask: puts a question to this host's agent, which talks to the head, and waits for the answer.
        emit: receives `checkpoint-fetched` where files came from the head.
    """

    def __init__(self, storage: str, writer: Writer, ask: Ask, emit: Callable[[Event], None]):
        self._root = as_path(storage)
        self._writer = writer
        self._ask_agent = ask
        self._emit = emit
        self._damaged: set[str] = set()

    def begin(self, step: int) -> str:
        name: str = self._ask("begin", step=step)["name"]
        return name

    def open(self, name: str) -> epath.Path:
        (self._root / name / STATE / _MADE_BY_FIRST).mkdir(parents=True, exist_ok=True)
        return self._root / name

    def deliver(self, name: str) -> Delivered:
        files = list_files(self._root / name, known={})
        return Delivered(files=files, copied_bytes=self._ask("deliver", name=name, files=files)["bytes"])

    def commit(self, name: str, manifest: Manifest, finalize: Callable[[epath.Path], None]) -> list[str]:
        keep, damaged = self._writer.keep, sorted(self._damaged)
        answer = self._ask("commit", name=name, manifest=manifest.to_json(), keep=keep, damaged=damaged)
        return list(answer["kept"])

    def prune(self, kept: Sequence[str]) -> None:
        for folder in find_folders(str(self._root)):
            if folder.path.name not in kept:
                remove(folder.path)

    def discard(self, name: str) -> None:
        remove(self._root / name)
        if self._writer.is_first:
            self._ask("discard", name=name)

    def find(self) -> list[StepFolder]:
        return [
            StepFolder(step=step, path=self._root / name, committed=committed)
            for step, name, committed in self._ask("find")["steps"]
        ]

    def bring(self, folder: StepFolder) -> Manifest:
        started = time.perf_counter()
        found = self._ask("bring", name=folder.path.name)
        if found["bytes"]:
            seconds = time.perf_counter() - started
            self._emit({"type": "checkpoint-fetched", "step": folder.step, **found, "seconds": seconds})
        return read_manifest(folder.path)

    def distrust(self, folder: StepFolder) -> None:
        self._damaged.add(folder.path.name)

    def _ask(self, op: str, **details: Any) -> dict[str, Any]:
        answer = self._ask_agent({"op": op, **details})
        error = answer.get("error")
        if error is not None:
            raise {"fenced": FencedError, "damage": DamageError, "storage": OSError}[error["kind"]](error["message"])
        return answer


def _written_by(rank: int, folder: epath.Path) -> Files:
    """What Orbax has written for this rank below a step's folder; a rank without arrays of its own writes nothing."""
    arrays, described = f"{STATE}/ocdbt.process_{rank}", f"{STATE}/{_MADE_BY_FIRST}/process_{rank}"
    written: Files = {}
    with contextlib.suppress(FileNotFoundError):
        for below, path in files_below(folder / arrays):
            written[f"{arrays}/{below}"] = file_facts(path, digest=False)
    with contextlib.suppress(FileNotFoundError):
        written[described] = file_facts(folder / described, digest=False)
    return written


def _wait_until_listed(folder: epath.Path, written: Files) -> None:
    """Returns when the folders of all ranks are listed here, or will not be: Orbax joins those that are."""
    parts = {name.split("/")[1] for name in written}
    deadline = time.monotonic() + LISTING_PATIENCE_S
    while not parts.issubset(path.name for path in (folder / STATE).iterdir()) and time.monotonic() < deadline:
        time.sleep(LISTING_PERIOD_S)


def _require_all(written: Files, found: Files) -> None:
    """Raises OSError where a file that a rank has written is not seen here as it is there."""
    for name, facts in written.items():
        if name not in found:
            raise OSError(
                f"{name} was written by its rank and is not seen here: the ranks do not share this storage, "
                "or it shows old folders for long (NFS: `acdirmax`)"
            )
        if found[name]["size"] != facts["size"]:
            raise OSError(
                f"{name} has {found[name]['size']} bytes here, and {facts['size']} for the rank that wrote it"
            )
