"""Results that must be equal on all shards: computed apart, compared bit by bit, and only then called one array."""

import dataclasses
import functools
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workloads.spmd.processes import checker, path_of

PyTree = Any

UNPROVEN = (
    "Nothing proves them equal: each shard may have computed its own from its own rows, so no host is called wrong. "
    'Reduce them by jax.lax.psum or pmean, or have all of them by out="stack"'
)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["stacked"], meta_fields=["is_scalar", "is_proven"])
@dataclasses.dataclass(frozen=True)
class Copy:
    """One device's copy of a result; outside of the mapped function, all copies, one after the other.

    Attributes:
        stacked: (devices * rows, ...), so that what lies on one device is the result itself.
        is_scalar: whether the result has no axis; then there is one row.
        is_proven: whether JAX can tell from its type that it is equal on all shards, as after a `psum`.
    """

    stacked: jax.Array
    is_scalar: bool
    is_proven: bool


def as_copy(leaf: jax.Array, axes: tuple[str, ...]) -> Copy:
    """Called where each shard is computed: hides from the compiler that copies should be equal, for they may not be."""
    unvaried = tuple(name for name in axes if name not in jax.typeof(leaf).manual_axis_type.varying)
    varying = jax.lax.pcast(leaf, unvaried, to="varying") if unvaried else leaf
    stacked = varying[None] if leaf.ndim == 0 else varying
    return Copy(stacked, is_scalar=leaf.ndim == 0, is_proven=len(unvaried) == len(axes))


def check_proven(tree: PyTree, subject: str) -> PyTree:
    """The tree, if JAX can tell from its types that it is equal on all shards; called where each shard is computed.

    Raises:
        ValueError: naming the leaf that may differ, and what to do.
    """
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if varying := jax.typeof(leaf).manual_axis_type.varying:
            raise ValueError(
                f"{subject} may differ in {path_of(keys)}: it varies over {', '.join(sorted(map(str, varying)))}. "
                "Under jit, grad and the like there are no bits to compare, so it must be reduced, by jax.lax.psum or "
                "pmean; called by itself the function is compared bit by bit"
            )
    return tree


def verified(tree: PyTree, mesh: Mesh, subject: str) -> PyTree:
    """The one result of which the tree has copies, replicated over the mesh.

    Args:
        subject: what it is, in words, plural.

    Raises:
        ReplicaDivergenceError: copies differ that the program makes equal, so that some are wrong: names leaf, host,
            device, index and bits.
        ValueMismatchError: so do results of which nothing shows that the program makes them equal; no host is at fault.
    """
    whole = jax.tree.map(lambda copy: _relabel(copy, mesh), tree, is_leaf=_is_copy)
    verdict = checker().check(whole, step=0)
    copies = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_copy)
    proven = {path_of(keys) for keys, copy in copies if copy.is_proven}
    if wrong := tuple(divergence for divergence in verdict.divergences if divergence.leaf in proven):
        dataclasses.replace(verdict, divergences=wrong).raise_if_diverged(subject)
    verdict.raise_if_unlike(subject, UNPROVEN)
    return whole


def _is_copy(node: Any) -> bool:
    return isinstance(node, Copy)


def _relabel(copy: Copy, mesh: Mesh) -> jax.Array:
    """The copies where they lie, without copying, as one array that claims to be replicated."""
    pieces = [shard.data for shard in copy.stacked.addressable_shards]
    if copy.is_scalar:
        pieces = [piece.reshape(()) for piece in pieces]
    return jax.make_array_from_single_device_arrays(pieces[0].shape, NamedSharding(mesh, PartitionSpec()), pieces)
