"""An agent's copies: to the head in pieces, and back only what a host lacks or has damaged."""

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from launcher import host_copies
from launcher.attempt import RankTask
from launcher.host_copies import HostCopies
from launcher.keeper import Keeper
from tests.launcher.in_process import InProcess
from workloads.durable import as_path
from workloads.storage.manifest import Manifest, list_files

TASK = RankTask(
    attempt=1, resume=False, keep=3, program_barrier=True, faults=(), attempt_id="job.1.x", job="job", rank=0,
    num_ranks=2, workload="psum-check", settings={}, files={}, seed=0, checkpoint_every=0, check_every=0,
    jax_config={}, code_digest="digest", storage="", own_disk=True,
)  # fmt: skip


class Cluster:
    """A keeper, and hosts with a folder each.

    Args:
        folder: of them all.
    """

    def __init__(self, folder: Path):
        self.head = folder / "head" / "job.b7"
        self._folder = folder
        self._keeper = InProcess(Keeper())

    def host(self, number: int) -> HostCopies:
        task = RankTask(**{**vars(TASK), "storage": str(self.head)})
        return HostCopies(self._keeper, task, self._folder / f"host-{number}")

    async def save(self, step: int, shards: dict[str, bytes]) -> str:
        """Each shard from a host of its own."""
        hosts = [self.host(number) for number in range(len(shards))]
        name: str = (await hosts[0].answer({"op": "begin", "step": step}))["name"]
        files = {}
        for host, (file, data) in zip(hosts, shards.items(), strict=True):
            path = host.folder / name / "state" / file
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
            mine = list_files(as_path(str(host.folder / name)), known={})
            assert await host.answer({"op": "deliver", "name": name, "files": mine}) == {"bytes": len(data)}
            files |= mine
        manifest = Manifest(
            step=step, attempt=1, attempt_id="job.1.x", seed=0, config={}, metadata={}, leaves={}, files=files
        )
        answer = await hosts[0].answer(
            {"op": "commit", "name": name, "manifest": manifest.to_json(), "keep": 3, "damaged": []}
        )
        assert name in answer["kept"]
        return name


def run(program: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(program, 60.0))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "PIECE_BYTES", 7)


SHARDS = {"a": b"0123456789" * 5, "d/b": b"exactly 14 by.", "empty": b""}


def test_a_host_gets_what_it_lacks_and_nothing_twice(tmp_path: Path) -> None:
    async def program() -> None:
        cluster = Cluster(tmp_path)
        name = await cluster.save(5, SHARDS)
        for host in (cluster.host(0), cluster.host(7)):  # one that has written, and a new one
            there = sum(len(data) for file, data in SHARDS.items() if (host.folder / name / "state" / file).exists())
            lacks = [file for file in SHARDS if not (host.folder / name / "state" / file).exists()]
            question = {"op": "bring", "name": name}
            expected = {"bytes": sum(map(len, SHARDS.values())) - there, "files": len(lacks), "damaged": []}
            assert await host.answer(question) == expected
            assert {file: (host.folder / name / "state" / file).read_bytes() for file in SHARDS} == SHARDS
            assert await host.answer(question) == {"bytes": 0, "files": 0, "damaged": []}
            assert json.loads((host.folder / name / "manifest.json").read_text())["step"] == 5
            assert not list(host.folder.rglob("*.part"))

    run(program())


def test_a_damaged_copy_is_fetched_again_and_named(tmp_path: Path) -> None:
    async def program() -> None:
        cluster = Cluster(tmp_path)
        name = await cluster.save(5, SHARDS)
        host = cluster.host(0)
        await host.answer({"op": "bring", "name": name})
        damaged = host.folder / name / "state" / "d" / "b"
        damaged.write_bytes(b"exactly 14 bY.")
        found = await host.answer({"op": "bring", "name": name})
        assert found == {"bytes": 14, "files": 1, "damaged": ["state/d/b"]}
        assert damaged.read_bytes() == SHARDS["d/b"]

    run(program())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(b"9" * 50), "state/a is not what was written, on the head: its sha256 differs"),
        (lambda path: path.unlink(), "state/a is gone on the head"),
    ],
)
def test_damage_on_the_head_is_told_where_the_host_has_no_good_copy(tmp_path: Path, damage: Any, words: str) -> None:
    async def program() -> None:
        cluster = Cluster(tmp_path)
        name = await cluster.save(5, SHARDS)
        damage(cluster.head / name / "state" / "a")
        error = (await cluster.host(1).answer({"op": "bring", "name": name}))["error"]
        assert error["kind"] == "damage" and error["message"].startswith(words)
        assert "error" not in await cluster.host(0).answer({"op": "bring", "name": name}), "its own copy is good"
        manifest = cluster.head / name / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"step": 5', '"step": 6'))
        error = (await cluster.host(0).answer({"op": "bring", "name": name}))["error"]
        assert (error["kind"], error["message"]) == (
            "damage", "manifest.json is not what was written: its sha256 differs"
        )  # fmt: skip

    run(program())


def test_what_the_keeper_refuses_is_an_answer(tmp_path: Path) -> None:
    async def program() -> None:
        cluster = Cluster(tmp_path)
        host = cluster.host(0)
        cluster.head.mkdir(parents=True)
        (cluster.head / "fence.json").write_text(json.dumps({"attempt": 2, "attempt_id": "job.2.x"}))
        assert (await host.answer({"op": "begin", "step": 5}))["error"]["kind"] == "fenced"
        (cluster.head / "fence.json").unlink()
        cluster.head.rmdir()
        cluster.head.write_text("a file where the folder should be")
        error = (await host.answer({"op": "begin", "step": 5}))["error"]
        assert error["kind"] == "storage" and "NotADirectoryError" in error["message"]

    run(program())
