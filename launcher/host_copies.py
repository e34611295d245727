"""A host's copies of checkpoints: the agent brings what its rank has written to the head, and back what it lacks."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError

from launcher.attempt import RankTask
from launcher.keeper import Claim
from launcher.rank_process import Message
from workloads.durable import as_path
from workloads.errors import DamageError, FencedError
from workloads.storage.folders import MANIFEST
from workloads.storage.manifest import Files, file_facts

PIECE_BYTES = 4 * 2**20


class HostCopies:
    """Answers what a rank asks of its checkpoints (`workloads.storage.stores.HostStore`).

    Args:
        keeper: Ray handle of the head's keeper.
        task: of the rank.
        root: below which each job has its folder on this host's disk.
    """

    def __init__(self, keeper: Any, task: RankTask, root: Path):
        self._keeper = keeper
        self._claim = Claim(storage=task.storage, attempt=task.attempt, attempt_id=task.attempt_id)
        self.folder = root / Path(task.storage).name

    async def answer(self, question: Message) -> Message:
        """What there is to say, or `error`: its `kind` (fenced, damage, storage) and `message`."""
        try:
            return await self._do(question)
        except RayTaskError as error:  # what the keeper raised
            return _refusal(error.cause)
        except (RayError, OSError, DamageError) as error:
            return _refusal(error)

    async def _do(self, question: Message) -> Message:
        match question["op"]:
            case "begin":
                return {"name": await self._keeper.begin.remote(self._claim, question["step"])}
            case "deliver":
                return {"bytes": await self._deliver(question["name"], question["files"])}
            case "commit":
                what = (question["name"], question["manifest"], question["keep"], question["damaged"])
                return {"kept": await self._keeper.commit.remote(self._claim, *what)}
            case "discard":
                await self._keeper.discard.remote(self._claim, question["name"])
                return {}
            case "find":
                return {"steps": await self._keeper.find.remote(self._claim.storage)}
            case "bring":
                return await self._bring(question["name"])
        raise AssertionError(f"no rank asks {question['op']!r}")

    async def _deliver(self, name: str, files: Files) -> int:
        """Copies these files of a step to the head; returns their bytes."""
        for file, facts in files.items():
            path = f"{name}/{file}"
            for offset, length in _pieces(facts["size"]):
                data = await asyncio.to_thread(_read, self.folder / path, offset, length)
                ends = offset + length >= facts["size"]
                await self._keeper.put.remote(self._claim, path, offset, data, facts if ends else None)
        return sum(facts["size"] for facts in files.values())

    async def _bring(self, name: str) -> Message:
        """Makes this host's copy of a step whole; says how much came from the head, and which files were damaged."""
        text: str = await self._keeper.manifest.remote(self._claim.storage, name)
        files: Files = json.loads(text)["files"]
        num_bytes, num_files, damaged = 0, 0, []
        for file, facts in files.items():
            path = self.folder / name / file
            if await asyncio.to_thread(_is_good, path, facts):
                continue
            if path.exists():
                damaged.append(file)
            await self._fetch(name, file, facts)
            num_bytes, num_files = num_bytes + facts["size"], num_files + 1
        await asyncio.to_thread(_write, self.folder / name / MANIFEST, text)
        return {"bytes": num_bytes, "files": num_files, "damaged": damaged}

    async def _fetch(self, name: str, file: str, facts: dict[str, Any]) -> None:
        path = self.folder / name / file
        partial = path.with_name(f"{path.name}.part")
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        with partial.open("wb") as target:
            for offset, length in _pieces(facts["size"]):
                try:
                    data = await self._keeper.get.remote(self._claim.storage, f"{name}/{file}", offset, length)
                except FileNotFoundError as error:  # the keeper's, which Ray raises here as a subclass of its type
                    raise DamageError(f"{file}{await self._leaves_in(name, file)} is gone on the head") from error
                await asyncio.to_thread(target.write, data)
        if not await asyncio.to_thread(_is_good, partial, facts):
            partial.unlink()
            leaves = await self._leaves_in(name, file)
            raise DamageError(f"{file}{leaves} is not what was written, on the head: its sha256 differs")
        partial.replace(path)

    async def _leaves_in(self, name: str, file: str) -> str:
        words: str = await self._keeper.leaves_in.remote(self._claim.storage, name, file)
        return words


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    """`(offset, length)` of each piece; an empty file has one."""
    for offset in range(0, max(size, 1), PIECE_BYTES):
        yield offset, min(PIECE_BYTES, size - offset)


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _is_good(path: Path, facts: dict[str, Any]) -> bool:
    try:
        return file_facts(as_path(str(path)), digest=True) == facts
    except OSError:
        return False


def _refusal(error: BaseException) -> Message:
    kind = "fenced" if isinstance(error, FencedError) else "damage" if isinstance(error, DamageError) else "storage"
    words = f"{type(error).__name__}: {error}" if kind == "storage" else str(error)
    if isinstance(error, RayError):
        words = f"the keeper of checkpoints on the head cannot be reached ({type(error).__name__})"
    return {"error": {"kind": kind, "message": words}}
