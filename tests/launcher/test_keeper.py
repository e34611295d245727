"""The head's keeper: what arrives is whole or not there, a step counts last, and an old attempt commits nothing."""

import asyncio
import hashlib
import json
import resource
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from launcher.keeper import Claim, Keeper
from workloads.errors import FencedError
from workloads.storage.manifest import Leaf, Manifest

DATA = {"state/ocdbt/d/0": b"shard of host 0", "state/ocdbt/d/1": b"shard of host 1"}


def facts(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def claim(folder: Path, attempt: int = 1) -> Claim:
    return Claim(storage=str(folder / "job.b7"), attempt=attempt, attempt_id=f"job.{attempt}.x")


def manifest(step: int, attempt: int = 1) -> dict[str, Any]:
    leaves = {"w": Leaf(kind="devices", dtype="float32", shape=(2,), fingerprint="0" * 16)}
    return Manifest(
        step=step, attempt=attempt, attempt_id=f"job.{attempt}.x", seed=0, config={}, metadata={},
        leaves=leaves, files={name: facts(data) for name, data in DATA.items()},
    ).to_json()  # fmt: skip


def run(program: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(program, 60.0))


async def bring(keeper: Keeper, who: Claim, step: int, names: list[str] | None = None) -> str:
    """Begins a step and brings these files (all of them, if not said) in two pieces each."""
    name = await keeper.begin(who, step)
    for file in DATA if names is None else names:
        data = DATA[file]
        await keeper.put(who, f"{name}/{file}", 0, data[:5], None)
        await keeper.put(who, f"{name}/{file}", 5, data[5:], facts(data))
    return name


async def steps(keeper: Keeper, who: Claim) -> list[tuple[int, bool]]:
    return [(step, committed) for step, _, committed in await keeper.find(who.storage)]


def test_a_step_counts_once_all_files_are_there_and_older_ones_go(tmp_path: Path) -> None:
    async def program() -> None:
        keeper, who = Keeper(), claim(tmp_path)
        await keeper.fence(who)
        for step in (5, 10, 15):
            name = await bring(keeper, who, step)
            assert (await steps(keeper, who))[0] == (step, False)
            kept = await keeper.commit(who, name, manifest(step), 2)
        assert await steps(keeper, who) == [(15, True), (10, True)]
        assert kept == [found for _, found, _ in await keeper.find(who.storage)]
        written = json.loads(await keeper.manifest(who.storage, name))
        assert written["files"] == {file: facts(data) for file, data in DATA.items()}
        assert await keeper.get(who.storage, f"{name}/state/ocdbt/d/1", 6, 2) == b"of"
        assert await keeper.commit(who, name, manifest(15), 2) == kept, "Ray may ask again after a restart"

    run(program())


def test_a_host_that_was_lost_in_the_middle_of_its_copy_leaves_no_step(tmp_path: Path) -> None:
    async def program() -> None:
        keeper, who = Keeper(), claim(tmp_path)
        await keeper.commit(who, await bring(keeper, who, 5), manifest(5), 3)
        name = await bring(keeper, who, 10, ["state/ocdbt/d/0"])
        await keeper.put(who, f"{name}/state/ocdbt/d/1", 0, DATA["state/ocdbt/d/1"][:5], None)
        with pytest.raises(OSError, match=r"state/ocdbt/d/1 has not arrived on the head in its 15 bytes"):
            await keeper.commit(who, name, manifest(10), 3)
        assert await steps(keeper, who) == [(10, False), (5, True)]
        following = claim(tmp_path, 2)
        await keeper.fence(following)
        await keeper.begin(following, 10)
        assert len(list(Path(who.storage).glob("step_00000010*"))) == 1, "the half one has gone"

    run(program())


def test_what_arrives_with_another_digest_is_refused(tmp_path: Path) -> None:
    async def program() -> None:
        keeper, who = Keeper(), claim(tmp_path)
        name = await keeper.begin(who, 5)
        with pytest.raises(OSError, match=r"has arrived as .* and its rank has written"):
            await keeper.put(who, f"{name}/state/a", 0, b"flipped", facts(b"written"))
        assert not list((Path(who.storage) / name / "state").iterdir())
        with pytest.raises(FileNotFoundError, match="was not begun"):
            await keeper.put(who, "step_00000007.x/state/a", 0, b"a", facts(b"a"))

    run(program())


def test_an_old_attempt_can_write_nothing(tmp_path: Path) -> None:
    async def program() -> None:
        keeper, old, new = Keeper(), claim(tmp_path, 1), claim(tmp_path, 2)
        await keeper.fence(old)
        name = await bring(keeper, old, 5)  # all is there: only the commit is missing
        await keeper.fence(new)
        for write in (
            keeper.commit(old, name, manifest(5), 3),
            keeper.put(old, f"{name}/state/more", 0, b"", facts(b"")),
            keeper.begin(old, 10),
            keeper.discard(old, name),
        ):
            with pytest.raises(FencedError, match=r"attempt 1 \(job\.1\.x\) may write no checkpoint .* attempt 2"):
                await write
        assert await steps(keeper, new) == [(5, False)]

    run(program())


def test_what_a_new_attempt_finds_stays_so(tmp_path: Path) -> None:
    """A commit that is under way is over, one way or the other, when the fence of the next attempt stands."""

    async def program() -> None:
        keeper, old, new = Keeper(), claim(tmp_path, 1), claim(tmp_path, 2)
        await keeper.fence(old)
        outcomes = set()
        for step, fence_first in ((5, False), (10, True)):
            name = await bring(keeper, old, step)
            commit = keeper.commit(old, name, manifest(step), 3)
            both = [keeper.fence(new), commit] if fence_first else [commit, keeper.fence(new)]
            tasks = [asyncio.ensure_future(task) for task in both]
            await tasks[0 if fence_first else 1]
            found = await steps(keeper, new)
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert await steps(keeper, new) == found
            outcomes.add(any(isinstance(end, FencedError) for end in ends))
            (tmp_path / "job.b7" / "fence.json").unlink()
            await keeper.fence(old)
        assert outcomes == {False, True}

    run(program())


def test_a_full_disk_on_the_head_costs_one_step(tmp_path: Path) -> None:
    async def program() -> None:
        keeper, who = Keeper(), claim(tmp_path)
        await keeper.commit(who, await bring(keeper, who, 5), manifest(5), 3)
        name = await keeper.begin(who, 10)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                await keeper.put(who, f"{name}/state/a", 0, bytes(2000), facts(bytes(2000)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        await keeper.discard(who, name)
        assert await steps(keeper, who) == [(5, True)]

    run(program())
