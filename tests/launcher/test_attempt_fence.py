"""Shutting out older attempts: what of a failure is the storage's, and what a host's."""

import asyncio
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError

from launcher.agent_handles import GoneAgent
from launcher.attempt_fence import StorageError, shut_out_older
from launcher.keeper import Claim, Keeper
from tests.launcher.in_process import InProcess
from workloads.errors import FencedError
from workloads.fence import check_fence


def claim(folder: Path) -> Claim:
    return Claim(storage=str(folder / "storage"), attempt=2, attempt_id="job.2.x")


def shut_out(folder: Path, keeper: Keeper) -> None:
    async def program() -> None:
        await asyncio.wait_for(shut_out_older(claim(folder), InProcess(keeper)), 30.0)

    asyncio.run(program())


def test_the_keeper_writes_what_the_head_keeps(tmp_path: Path) -> None:
    shut_out(tmp_path, Keeper())
    with pytest.raises(FencedError):
        check_fence(claim(tmp_path).storage, 1, "job.1.x")


def test_a_disk_of_the_head_that_fails_is_the_storage(tmp_path: Path) -> None:
    (tmp_path / "storage").write_text("no folder")
    with pytest.raises(StorageError, match=f"attempt 2 could not begin, as the storage {tmp_path}.*FileExistsError"):
        shut_out(tmp_path, Keeper())


class Slow(Keeper):
    async def fence(self, claim: Claim) -> None:
        await asyncio.Event().wait()


def test_a_keeper_that_does_not_answer_is_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.attempt_fence.FENCE_TIMEOUT_S", 0.1)
    with pytest.raises(StorageError, match="the keeper of checkpoints on the head did not answer within"):
        shut_out(tmp_path, Slow())


def test_a_keeper_that_is_gone_is_a_lost_host(tmp_path: Path) -> None:
    async def program() -> None:
        await shut_out_older(claim(tmp_path), GoneAgent())

    with pytest.raises(ActorDiedError):
        asyncio.run(program())
