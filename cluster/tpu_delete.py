"""Slices deleted until the cloud's lists show none of them: only then is nothing billed any more."""

import time
from collections.abc import Callable, Sequence

from cluster.errors import ClusterError
from cluster.tpu_cloud import CloudError, TpuCloud
from cluster.tpu_slice import Slice

FIRST_POLL_S = 0.5
LAST_POLL_S = 10.0
POLL_GROWTH = 1.3
DELETE_TIMEOUT_S = 600.0
SURE_PAUSE_S = 1.0  # between two lists that show nothing: the first may be older than a request


def delete_until_gone(cloud: TpuCloud, is_meant: Callable[[Slice], bool], again: str) -> None:
    """Deletes slices, and returns when two lists in a row show none of them.

    Args:
        cloud: where they are.
        is_meant: whether a slice is one of them.
        again: the command that tries again.

    Raises:
        ClusterError: what is left after DELETE_TIMEOUT_S, or that the cloud cannot be asked.
    """
    deadline = time.monotonic() + DELETE_TIMEOUT_S
    pause, empty, problem = FIRST_POLL_S, 0, ""
    while empty < 2:
        left = [slice_ for slice_ in cloud.slices() if is_meant(slice_)]
        empty = 0 if left else empty + 1
        if left and time.monotonic() > deadline:
            raise ClusterError(_not_deleted(left, again, problem))
        for slice_ in left:
            try:
                if not slice_.is_going:
                    cloud.delete(slice_)
            except CloudError as error:  # some states must pass before it can be deleted
                problem = f" ({error})"
        time.sleep(pause if left else SURE_PAUSE_S)
        pause = min(pause * POLL_GROWTH, LAST_POLL_S)


def _not_deleted(left: Sequence[Slice], again: str, problem: str) -> str:
    names = ", ".join(f"{slice_.name} ({slice_.state})" for slice_ in left)
    return f"not deleted after {DELETE_TIMEOUT_S / 60:.0f} min, and maybe billed: {names}; {again} again{problem}"
