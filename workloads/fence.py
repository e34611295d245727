"""The fence: which attempt of a job may write checkpoints. Imports no JAX: the launcher writes it.

Who starts an attempt writes the fence first. Another attempt that is still alive somewhere (its host was cut off, it
was frozen) then finds an id that is not its own, and commits nothing. Numbers alone would not do: a job that goes on
from an older copy of its record counts from there.
"""

import json

from workloads.durable import as_path, write_whole
from workloads.errors import FencedError

FENCE = "fence.json"


def write_fence(storage: str, attempt: int, attempt_id: str) -> None:
    """Shuts out every other attempt; call it before the attempt's ranks start.

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
        FencedError: another attempt has begun since.
        OSError: the storage cannot be read, or its fence is damaged.
    """
    fence = read_fence(storage)
    if fence is not None and fence[1] != attempt_id:
        raise FencedError(
            f"attempt {attempt} ({attempt_id}) may write no checkpoint under {storage}: "
            f"attempt {fence[0]} ({fence[1]}) has begun"
        )


def read_fence(storage: str) -> tuple[int, str] | None:
    """Number and id of the attempt that may write; None: there is no fence.

    Raises:
        OSError: the storage cannot be read, or its fence is damaged.
    """
    path = as_path(storage) / FENCE
    try:
        fence = json.loads(path.read_text())
        return int(fence["attempt"]), str(fence["attempt_id"])
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise OSError(f"{path} is damaged ({why}); the next attempt of the job writes a new one") from error
