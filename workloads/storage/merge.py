"""Joins what the processes of a save have written into one key-value store, as Orbax does, but without JAX.

Each process writes its arrays below a folder of its own, `ocdbt.process_K`. The index over all of them needs all of
them in one place; where each host has a disk of its own that place is the head, which holds no device.
"""

from pathlib import Path
from typing import Any

# As Orbax's `merge_ocdbt_per_process_files` asks for; a reader takes them from the store itself.
_CONFIG = {"max_inline_value_bytes": 1024, "max_decoded_node_bytes": 100_000_000, "manifest_kind": "single"}


def merge_processes(state: Path) -> None:
    """Writes the index over the arrays of all processes; their own folders stay, and it refers to them.

    Args:
        state: the folder that the processes have written, in one place.

    Raises:
        OSError: it cannot be read or written.
    """
    import tensorstore as ts

    parts = sorted(state.glob("ocdbt.process_*"))
    if not parts:
        return  # a tree without arrays
    # One context for all: stores of another count as other disks, between which nothing is copied.
    context = ts.Context()
    try:
        whole = ts.KvStore.open({**_spec(state), "config": _CONFIG}, context=context).result()
        transaction = ts.Transaction(atomic=True)
        for part in parts:
            found = ts.KvStore.open(_spec(part), context=context).result()
            found.experimental_copy_range_to(whole.with_transaction(transaction)).result()
        transaction.commit_async().result()
    except (ValueError, NotImplementedError) as error:  # so TensorStore reports a full disk
        raise OSError(f"the arrays of {len(parts)} processes cannot be joined: {error}") from error


def _spec(folder: Path) -> dict[str, Any]:
    return {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}}
