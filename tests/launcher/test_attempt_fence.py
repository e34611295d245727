"""Shutting out older attempts: what of a failure is the storage's, and what a host's."""

import asyncio
import threading
import time
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError

from launcher.agent_handles import GoneAgent
from launcher.attempt_fence import StorageError, shut_out_older
from launcher.keeper import Claim, Keeper
from tests.launcher.in_process import InProcess
from workloads.errors import FencedError
from workloads.fence import check_fence, read_fence, write_fence


def claim(folder: Path, attempt: int = 2) -> Claim:
    return Claim(storage=str(folder / "storage"), attempt=attempt, attempt_id=f"job.{attempt}.x")


def shut_out(folder: Path, keeper: Keeper | None, saved_step: int | None = None, attempt: int = 2) -> None:
    async def program() -> None:
        handle = InProcess(keeper) if keeper else None
        await asyncio.wait_for(shut_out_older(claim(folder, attempt), handle, saved_step), 30.0)

    asyncio.run(program())


def test_the_keeper_writes_what_the_head_keeps(tmp_path: Path) -> None:
    shut_out(tmp_path, Keeper())
    with pytest.raises(FencedError):
        check_fence(claim(tmp_path).storage, 1, "job.1.x")


@pytest.mark.parametrize("keeper", [None, Keeper()])
def test_no_fence_is_put_where_a_saved_checkpoint_is_not_to_be_seen(tmp_path: Path, keeper: Keeper | None) -> None:
    storage = Path(claim(tmp_path).storage)
    with pytest.raises(
        StorageError, match=rf"has saved step 30 under {storage}, and the head finds no checkpoint there"
    ):
        shut_out(tmp_path, keeper, saved_step=30)
    assert not storage.exists(), "what is mounted there later would hide it, and until then it would look like ours"
    shut_out(tmp_path, keeper)  # no checkpoint is known: the job's folder is made
    with pytest.raises(StorageError, match="to start over at step 0, submit it anew"):
        shut_out(tmp_path, keeper, saved_step=30)
    (storage / "step_00000030.job.1.x.x7f3a9c").mkdir()  # as damaged as a step can be: that is told by the ranks
    shut_out(tmp_path, keeper, saved_step=30)
    assert read_fence(str(storage)) == (2, "job.2.x")


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


def test_a_shared_storage_that_hangs_is_told_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As NFS does whose server is gone."""
    back = threading.Event()
    request.addfinalizer(back.set)
    monkeypatch.setattr("launcher.attempt_fence.FENCE_TIMEOUT_S", 0.1)
    monkeypatch.setattr("launcher.attempt_fence.write_fence", lambda *_: back.wait())
    with pytest.raises(StorageError, match=f"the storage {tmp_path}.* did not answer within 0.1 s"):
        shut_out(tmp_path, None)


def test_the_fence_of_an_older_attempt_does_not_come_after_a_newer_one_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A storage that was gone takes, when it is back, what was begun there: attempt 1's, for which nobody waits."""
    back = threading.Event()
    request.addfinalizer(back.set)

    def write(storage: str, attempt: int, attempt_id: str) -> None:
        if attempt == 1:
            back.wait()
            time.sleep(0.3)
        write_fence(storage, attempt, attempt_id)

    monkeypatch.setattr("launcher.attempt_fence.write_fence", write)
    with monkeypatch.context() as hurried:
        hurried.setattr("launcher.attempt_fence.FENCE_TIMEOUT_S", 0.1)
        for attempt in (1, 2):
            with pytest.raises(StorageError, match=f"attempt {attempt} could not begin.* did not answer within 0.1 s"):
                shut_out(tmp_path, None, attempt=attempt)
    back.set()
    shut_out(tmp_path, None, attempt=3)
    assert read_fence(claim(tmp_path).storage) == (3, "job.3.x")


def test_a_keeper_that_is_gone_is_a_lost_host(tmp_path: Path) -> None:
    async def program() -> None:
        await shut_out_older(claim(tmp_path), GoneAgent())

    with pytest.raises(ActorDiedError):
        asyncio.run(program())
