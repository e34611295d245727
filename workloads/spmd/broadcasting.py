"""`broadcast`: one host's values on all hosts, bit for bit."""

from typing import Any

import jax
import numpy as np

from workloads.spmd.gathering import CHUNK_BYTES
from workloads.spmd.processes import first_difference, path_of
from workloads.spmd.stream import Block, Row, carried, piece_bytes, read_from
from workloads.spmd.transport import read, start_broadcast

PyTree = Any


def broadcast(tree: PyTree, root: int = 0, *, chunk_bytes: int = CHUNK_BYTES) -> PyTree:
    """What the root's tree holds, on every host; what the others hold is replaced.

        settings = {"seed": int(time.time()), "order": np.random.permutation(1000)}
        settings = spmd.broadcast(settings)                 # now every host has what rank 0 drew
        key = spmd.broadcast(jax.random.key(settings["seed"]), root=0)

    The payload of a NaN, the sign of zero and all other bits arrive as they were.

    Args:
        tree: NumPy arrays, numbers, text and bytes, typed PRNG keys, arrays on devices of one host; of the same
            structure, shapes and dtypes (text and bytes: of as many bytes) on all hosts, every one of which must call.
        root: the rank whose values count.
        chunk_bytes: memory that may be used on each host beyond the tree and the result.

    Returns:
        The tree with leaves of the same kinds: numbers and text of Python's, NumPy arrays, keys, `jax.Array` on the
        default device.

    Raises:
        ValueError: on every host: trees that differ, no such rank, or an array that several hosts share already.
        TimeoutError: naming the processes that did not call.
    """
    num_ranks = jax.process_count()
    if not 0 <= root < num_ranks:
        raise ValueError(f"root={root}: ranks are 0 to {num_ranks - 1}")
    paths = [path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(tree)]
    leaves, treedef = jax.tree.flatten(tree)
    for path, leaf in zip(paths, leaves, strict=True):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise ValueError(f"broadcast: {path} is one array over several hosts already")
    arrays = [_host_array(leaf) for leaf in leaves]
    kinds = {path: _describe(leaf, array) for path, leaf, array in zip(paths, leaves, arrays, strict=True)}
    if differs := first_difference("broadcast", kinds):
        raise ValueError(f"broadcast: trees of the hosts must be alike; {differs[0]} is {differs[1]}")
    wholes = [np.empty(array.shape, array.dtype) for array in arrays]
    sent, received = ([carried(array) for array in each] for each in (arrays, wholes))
    row = Row(
        Block(leaf=number, bounds=tuple((0, size) for size in array.shape), dtype=array.dtype)
        for number, array in enumerate(sent)
    )
    reads = [read_from(array) for array in sent]
    piece = piece_bytes(chunk_bytes // 4, row.num_bytes)
    for start in range(0, row.num_bytes, piece):
        stretch = row.read(reads, start, piece)
        moved = read(start_broadcast(stretch, root))[0] if num_ranks > 1 else stretch
        row.write(received, start, moved)
    return jax.tree.unflatten(treedef, [_like(leaf, whole) for leaf, whole in zip(leaves, wholes, strict=True)])


def _host_array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, str):
        leaf = leaf.encode()
    # NumPy's own text and bytes end before their trailing zeros, which digests have too.
    array = np.frombuffer(leaf, np.uint8) if isinstance(leaf, bytes) else np.asarray(leaf)
    if array.dtype.hasobject:
        raise TypeError(f"cannot broadcast {type(leaf).__name__}: neither an array nor a number")
    return array


def _like(leaf: Any, whole: np.ndarray) -> Any:
    """What arrived, as what was given."""
    if isinstance(leaf, jax.Array):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(whole, impl=jax.random.key_impl(leaf))
        return jax.numpy.asarray(whole)
    if isinstance(leaf, np.ndarray):
        return whole
    if isinstance(leaf, str):
        return type(leaf)(whole.tobytes().decode())
    if isinstance(leaf, bytes):
        return type(leaf)(whole.tobytes())
    return whole[()] if isinstance(leaf, np.generic) else type(leaf)(whole[()])


def _describe(leaf: Any, array: np.ndarray) -> str:
    if isinstance(leaf, str | bytes):
        return f"{type(leaf).__name__} of {array.size} bytes"
    return f"{getattr(leaf, 'dtype', array.dtype)}{list(np.shape(leaf))}"
