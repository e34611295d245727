"""A tree as a checkpoint sees it: named leaves, and fingerprints that do not depend on how arrays are cut.

A rank fingerprints the blocks that its devices hold, with the positions of their elements in the whole array. The
ranks trade these parts; copies of a block must agree, and one part of every block added up is the leaf's fingerprint.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.integrity.fingerprint import fingerprint_blocks, fingerprint_host
from workloads.storage.manifest import DEVICES, MEMORY, Leaf

PyTree = Any
Parts = dict[str, dict[str, list[str]]]  # {leaf: {block: fingerprints of the copies here, without repetition}}


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """`{path: leaf}`, as `opt/0/mu/wte`; None where there is nothing is left out."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def describe(leaf: Any) -> Leaf:
    """Of an array (or its shape), a NumPy array or a number; without a fingerprint."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return Leaf(kind=DEVICES, dtype=str(np.dtype(leaf.dtype)), shape=tuple(leaf.shape))
    array = np.asarray(leaf)
    return Leaf(kind=MEMORY, dtype=str(array.dtype), shape=array.shape)


def start_fingerprints(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Starts the devices on the blocks that they hold, and digests what is in host memory.

    Args:
        leaves: arrays without typed keys, NumPy arrays and numbers.

    Returns:
        For `finish_fingerprints`: the arrays may be donated meanwhile.
    """
    started: dict[str, Any] = {}
    for name, leaf in leaves.items():
        if not isinstance(leaf, jax.Array):
            started[name] = fingerprint_host(np.asarray(leaf))
            continue
        starts = [_start(shard.index, leaf.shape) for shard in leaf.addressable_shards]
        data = [shard.data for shard in leaf.addressable_shards]
        words = fingerprint_blocks(data, starts, leaf.shape) if data and data[0].size else np.zeros((len(data), 2))
        started[name] = (starts, words)
    return started


def finish_fingerprints(started: Mapping[str, Any]) -> Parts:
    """The parts that this rank holds, as JSON."""
    parts: Parts = {}
    for name, found in started.items():
        if isinstance(found, str):
            parts[name] = {"": [found]}
            continue
        copies: dict[str, set[str]] = {}
        for start, (first, second) in zip(found[0], np.asarray(found[1], np.uint32), strict=True):
            copies.setdefault(",".join(map(str, start)), set()).add(f"{first:08x}{second:08x}")
        parts[name] = {block: sorted(digests) for block, digests in copies.items()}
    return parts


def combine(parts: Sequence[Parts]) -> tuple[dict[str, str], list[str]]:
    """All ranks' parts as one fingerprint for each leaf.

    Returns:
        `{leaf: fingerprint}`, and the names of leaves whose copies differ.
    """
    whole: dict[str, str] = {}
    torn = []
    for name in parts[0]:
        blocks: dict[str, set[str]] = {}
        for part in parts:
            for block, digests in part[name].items():
                blocks.setdefault(block, set()).update(digests)
        if any(len(digests) > 1 for digests in blocks.values()):
            torn.append(name)
            continue
        digests = [next(iter(digests)) for digests in blocks.values()]
        whole[name] = digests[0] if "" in blocks else _added(digests)
    return whole, torn


def is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def without_key_type(leaf: Any) -> Any:
    """Typed keys as their raw words; an abstract key as their shape, dtype and sharding."""
    if not is_key(leaf):
        return leaf
    if isinstance(leaf, jax.Array):
        return jax.random.key_data(leaf)
    plain = jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(plain.shape, plain.dtype, sharding=leaf.sharding)


def with_key_type(like: Any, found: Any) -> Any:
    """`found` with the generator of `like`; `key_impl` takes keys and tracers, but no abstract key."""
    if not is_key(like):
        return found
    impls: list[Any] = []
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), like)
    return jax.random.wrap_key_data(found, impl=impls[0])


def _start(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(part.indices(size)[0] for part, size in zip(index, shape, strict=True))


def _added(digests: Sequence[str]) -> str:
    """The words of each added up modulo 2^32."""
    first, second = (sum(int(digest[at : at + 8], 16) for digest in digests) % 2**32 for at in (0, 8))
    return f"{first:08x}{second:08x}"
