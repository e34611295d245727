"""Rows onto devices: padded to a multiple of the devices, masked, never dropped."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DATA_AXIS = "data"


def padded_rows(num_rows: int, mesh: Mesh) -> int:
    """The least multiple of the number of devices that holds `num_rows`."""
    size = mesh.shape[DATA_AXIS]
    return -(-num_rows // size) * size


def shard_rows(
    array: np.ndarray, mesh: Mesh, convert: Callable[[np.ndarray], np.ndarray] = lambda rows: rows
) -> jax.Array:
    """Spreads the rows of an array over all devices; each process converts and places its own rows only.

    Args:
        array: (rows, ...), equal on all processes.
        mesh: with the axis `data`.
        convert: applied to this process's rows, (local rows, ...) to (local rows, ...); elementwise.

    Returns:
        (padded rows, ...), sharded over `data` along axis 0; padded rows are zero before `convert`.
    """
    shape = (padded_rows(len(array), mesh), *array.shape[1:])

    def local_rows(index: tuple[slice, ...]) -> np.ndarray:
        start, stop, _ = index[0].indices(shape[0])
        rows = array[start : min(stop, len(array))]
        padding = [(0, stop - start - len(rows))] + [(0, 0)] * (array.ndim - 1)
        return convert(np.pad(rows, padding))

    return jax.make_array_from_callback(shape, NamedSharding(mesh, P(DATA_AXIS)), local_rows)


def shard_row_mask(num_rows: int, mesh: Mesh) -> jax.Array:
    """True for real rows, false for padding: (padded rows,), bool, sharded like the rows."""
    return shard_rows(np.ones(num_rows, bool), mesh)


def placed_like(leaf: jax.Array, shape: tuple[int, ...]) -> jax.Array | jax.ShapeDtypeStruct:
    """Where to read an array that was padded for another number of devices: a copy on each; else like `leaf`."""
    if leaf.shape == shape:
        return leaf
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=NamedSharding(leaf.sharding.mesh, P()))


def repadded(leaf: jax.Array, found: jax.Array) -> jax.Array:
    """`found` in the shape and sharding of `leaf`: padding cut off, or more of it, zero; no real row is touched."""
    if found.shape == leaf.shape:
        return found

    def fit(array: jax.Array) -> jax.Array:
        kept = array[tuple(slice(size) for size in leaf.shape)]
        return jnp.pad(kept, [(0, size - now) for size, now in zip(leaf.shape, kept.shape, strict=True)])

    return jax.jit(fit, out_shardings=leaf.sharding)(found)
