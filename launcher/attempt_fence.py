"""Before an attempt begins: every older one is shut out of the job's storage."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from ray.exceptions import RayError, RayTaskError

from launcher.keeper import Claim
from launcher.own_thread import begin
from workloads.fence import write_fence
from workloads.storage.folders import find_folders

T = TypeVar("T")
FENCE_TIMEOUT_S = 120.0  # it may have to wait for the commit of an older attempt

_begun: dict[str, Future[Any]] = {}  # what was begun last on each storage, which may hang


class StorageError(Exception):
    """The storage is not there, or does not take the fence; later it may. The message is for the user."""


async def shut_out_older(claim: Claim, keeper: Any | None, saved_step: int | None = None) -> None:
    """Writes the fence; what the head keeps, it keeps itself, so that no commit is under way after this.

    Nothing is written where a checkpoint that counts is not to be seen: that is another storage, or the bare folder
    where one is not mounted, and with a fence in it the ranks would take it for theirs and start at 0.

    Args:
        claim: of the attempt that begins.
        keeper: Ray handle of the head's keeper; None: all hosts share the storage.
        saved_step: of the newest checkpoint that counts, as the job's record has it; None: there is none.

    Raises:
        StorageError: there is no checkpoint where there was one, it cannot be written, or it or the keeper does not
            answer.
        RayError: the keeper is gone.
    """
    try:
        lost = saved_step is not None and not await _found(claim, keeper)
        if not lost:
            await _write(claim, keeper)
    except RayError:
        raise
    except Exception as error:  # the client of each object store has errors of its own
        what = f"attempt {claim.attempt} could not begin, as the storage {claim.storage} cannot be read or written"
        raise StorageError(f"{what}: {type(error).__name__}: {error}") from error
    if lost:
        raise StorageError(
            f"attempt {claim.attempt} could not begin: the job has saved step {saved_step} under {claim.storage}, and "
            "the head finds no checkpoint there: it is not mounted on the head, is another storage, or its files were "
            "removed. See to it and resume the job (`submit --resume`); to start over at step 0, submit it anew"
        )


async def _found(claim: Claim, keeper: Any | None) -> Sequence[Any]:
    """All steps that are there, damaged ones too."""
    if keeper is None:
        return await _in_time(claim.storage, find_folders)
    return list(await _answer(keeper.find.remote(claim.storage)))


async def _write(claim: Claim, keeper: Any | None) -> None:
    if keeper is None:
        await _in_time(claim.storage, write_fence, claim.attempt, claim.attempt_id)
    else:
        await _answer(keeper.fence.remote(claim))


async def _in_time(storage: str, function: Callable[..., T], *arguments: Any) -> T:
    """Calls it with a storage, which may hang (NFS) and come back when nobody waits any more.

    It begins when what was begun there before has ended: the fence of an older attempt must not come after a newer
    one's.
    """
    earlier = _begun.get(storage)

    def turn() -> T:
        if earlier is not None:
            wait([earlier])
        return function(storage, *arguments)

    asked = _begun[storage] = begin(turn)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(asked), FENCE_TIMEOUT_S)
    except TimeoutError:
        if asked.done():  # it has said so itself
            raise
        raise TimeoutError(f"it did not answer within {FENCE_TIMEOUT_S:g} s") from None


async def _answer(asked: Awaitable[Any]) -> Any:
    """What the keeper answers, in time; what it raises is raised as it was."""
    try:
        return await asyncio.wait_for(asked, FENCE_TIMEOUT_S)
    except RayTaskError as error:  # the head's disk fails: no host was lost
        raise error.cause from error
    except TimeoutError:
        why = f"the keeper of checkpoints on the head did not answer within {FENCE_TIMEOUT_S:g} s"
        raise TimeoutError(why) from None
