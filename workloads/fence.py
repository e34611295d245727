"""The fence: which attempt of a job may write checkpoints. Imports no JAX: the launcher writes it.

Who starts an attempt writes the fence first. An older attempt that is still alive somewhere (its host was cut off, it
was frozen) then finds a number above its own, and commits nothing.
"""

import json

from workloads.durable import as_path, write_whole
from workloads.errors import FencedError

FENCE = "fence.json"


def write_fence(storage: str, attempt: int, attempt_id: str) -> None:
    """Shuts out every attempt before this one; call it before the attempt's ranks start.

    Args:
        storage: folder or URL of the job's checkpoints; made if it is not there.
        attempt: 1, 2, ...; grows with each attempt of the job.
        attempt_id: unique for ever.

    Raises:
        OSError: the storage cannot be written.
    """
    folder = as_path(storage)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FENCE, json.dumps({"attempt": attempt, "attempt_id": attempt_id}))


def check_fence(storage: str, attempt: int, attempt_id: str) -> None:
    """Whether this attempt may write; a storage without a fence (no launcher) is open to all.

    Raises:
        FencedError: a newer attempt has begun, or another one of the same number.
        OSError: the storage cannot be read.
    """
    try:
        text = (as_path(storage) / FENCE).read_text()
    except FileNotFoundError:
        return
    fence = json.loads(text)
    newest = (fence["attempt"], fence["attempt_id"])
    if newest[0] > attempt or (newest[0] == attempt and newest[1] != attempt_id):
        raise FencedError(
            f"attempt {attempt} ({attempt_id}) may write no checkpoint under {storage}: "
            f"attempt {newest[0]} ({newest[1]}) has begun"
        )
