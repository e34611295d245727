"""Batches whose rows do not divide over the shards: refused in words, or padded and masked."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.spmd.arguments import Shards
from workloads.spmd.processes import path_of

PyTree = Any


def count_rows(batches: Mapping[str, PyTree], shards: Shards, *, pad: bool) -> int | None:
    """Rows of the batch, if it may be padded and the function is therefore told which rows count; else None.

    Args:
        batches: the arguments that are cut, by name.
        pad: whether they may be padded.

    Raises:
        ValueError: rows that do not divide, or, if they may be padded, leaves with different numbers of rows.
    """
    rows = {
        f"argument {name}" + (f", leaf {path_of(keys)}" if keys else ""): jnp.shape(leaf)[0]
        for name, batch in batches.items()
        for keys, leaf in jax.tree_util.tree_leaves_with_path(batch)
    }
    if pad:
        if not rows:
            raise ValueError("uneven='pad': the arguments that are cut have no leaves, so there are no rows")
        where, count = next(iter(rows.items()))
        for other, found in rows.items():
            if found != count:
                raise ValueError(f"{where} has {count} rows, {other} has {found}: one mask cannot fit both")
        return count
    for where, count in rows.items():
        if rest := count % shards.count:
            raise ValueError(
                f"{where}: {count} rows do not divide over {shards}; leave out {rest}, or add {shards.count - rest}, "
                "or say uneven='pad', which repeats the last row and tells the function by `mask` which rows count"
            )
    return None


def padded(count: int, shards: Shards) -> int:
    """Rows after padding."""
    return -(-count // shards.count) * shards.count


def pad_rows(batch: PyTree, to: int) -> PyTree:
    """Repeats the last row: real data is harmless where zeros would make NaN, whose gradient a mask does not stop."""

    def pad(leaf: Any) -> Any:
        if leaf.shape[0] == to:
            return leaf
        module = jnp if isinstance(leaf, jax.Array) else np
        with jax.ensure_compile_time_eval():  # under `jit` too, so that what is no tracer stays none and is compared
            return module.concatenate([leaf, module.repeat(leaf[-1:], to - leaf.shape[0], axis=0)])

    return jax.tree.map(pad, batch)


def merge_rows(tree: PyTree, count: int | None, shards: Shards) -> PyTree:
    """Shard axis and row axis become one: (shards, rows, ...) to (shards * rows, ...), without what was padded.

    Args:
        count: rows before padding; None if there was none.

    Raises:
        ValueError: a leaf that has no rows, or of which nobody could tell which rows are of the padding.
    """
    given = None if count is None else padded(count, shards) // shards.count
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if leaf.ndim < 2:
            raise ValueError(f"wrap_return='rows': the function returns a scalar in {path_of(keys)}, which has no rows")
        if given not in (None, leaf.shape[1]):
            raise ValueError(
                f"wrap_return='rows' with uneven='pad': the function gets {given} rows a shard and returns "
                f"{leaf.shape[1]} in {path_of(keys)}, so which of them are padding cannot be told; return a row for "
                "each row, or leave out wrap_return and merge the stacked result yourself"
            )
    # Not `[:count]`, which makes an array of each host's own where rows have no width.
    return jax.tree.map(
        lambda leaf: jax.lax.slice_in_dim(leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), 0, count), tree
    )
