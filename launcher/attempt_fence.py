"""Before an attempt begins: every older one is shut out of the job's storage."""

import asyncio
from typing import Any

from ray.exceptions import RayError, RayTaskError

from launcher.keeper import Claim
from workloads.fence import write_fence

FENCE_TIMEOUT_S = 120.0  # it may have to wait for the commit of an older attempt


class StorageError(Exception):
    """The storage does not take the fence; later it may. The message is for the user."""


async def shut_out_older(claim: Claim, keeper: Any | None) -> None:
    """Writes the fence; what the head keeps, it keeps itself, so that no commit is under way after this.

    Args:
        claim: of the attempt that begins.
        keeper: Ray handle of the head's keeper; None: all hosts share the storage.

    Raises:
        StorageError: it cannot be written, or the keeper does not answer in time.
        RayError: the keeper is gone.
    """
    try:
        if keeper is None:
            await asyncio.to_thread(write_fence, claim.storage, claim.attempt, claim.attempt_id)
        else:
            await _ask(keeper, claim)
    except RayError:
        raise
    except Exception as error:  # the client of each object store has errors of its own
        what = f"attempt {claim.attempt} could not begin, as the storage {claim.storage} cannot be written"
        raise StorageError(f"{what}: {type(error).__name__}: {error}") from error


async def _ask(keeper: Any, claim: Claim) -> None:
    try:
        await asyncio.wait_for(keeper.fence.remote(claim), FENCE_TIMEOUT_S)
    except RayTaskError as error:  # the head's disk fails: no host was lost
        raise error.cause from error
    except TimeoutError:
        why = f"the keeper of checkpoints on the head did not answer within {FENCE_TIMEOUT_S:g} s"
        raise TimeoutError(why) from None
