"""Sums over the data axis whose bits do not depend on how the devices are spread over processes.

An all-reduce adds in the order of its algorithm: of four devices, two processes (gloo's ring) and one process gave
different last bits. Here each device receives its share of every device's gradient, adds the shares in the order of
the mesh, and gathers the sums. That moves as many bytes as a ring all-reduce does, in one message for all leaves.
"""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from workloads.transformer import partition
from workloads.transformer.config import DATA_AXIS, MODEL_AXIS

PyTree = Any


def split_rows(array_BxT: jax.Array, mesh: Mesh) -> jax.Array:
    """(B, T) rows split over the data axis to (S, B / S, T): a group for each of its S devices."""
    groups = mesh.shape[DATA_AXIS]
    array_SxRxT = array_BxT.reshape(groups, -1, *array_BxT.shape[1:])
    return partition.constrain(array_SxRxT, mesh, PartitionSpec(DATA_AXIS))


def ordered_sum(tree: PyTree, mesh: Mesh) -> PyTree:
    """Sums every leaf over its first axis, which is split over the data axis.

    Args:
        tree: gradients by parameter, or scalars, of each of the S devices of the data axis: leaves (S, ...), the rest
            of the shape sharded as the parameter of that name is.
        mesh: with axes data and model.

    Returns:
        The same tree without the first axes, equal on all devices of the data axis.
    """
    specs = partition.specs(tree)
    paths_and_leaves, structure = jax.tree.flatten(tree)
    flat_specs = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    sums: list[jax.Array | None] = [None] * len(paths_and_leaves)
    for is_split in (True, False):  # what the model axis splits, and what it copies, are not mixed in one message
        chosen = [index for index, spec in enumerate(flat_specs) if (MODEL_AXIS in spec) == is_split]
        if not chosen:
            continue
        chosen_specs = [flat_specs[index] for index in chosen]
        summed = jax.shard_map(
            _sum_local,
            mesh=mesh,
            in_specs=([PartitionSpec(DATA_AXIS, *spec) for spec in chosen_specs],),
            out_specs=chosen_specs,
            check_vma=True,
        )([paths_and_leaves[index] for index in chosen])
        for index, leaf in zip(chosen, summed, strict=True):
            sums[index] = leaf
    return jax.tree.unflatten(structure, sums)


def _sum_local(leaves: list[jax.Array]) -> list[jax.Array]:
    """On one device: (1, ...) of each leaf to the sum over the data axis."""
    devices = jax.lax.axis_size(DATA_AXIS)
    flat_N = jnp.concatenate([leaf.reshape(-1) for leaf in leaves])
    padded = jnp.pad(flat_N, (0, -flat_N.size % devices)).reshape(devices, -1)
    shares_SxM = jax.lax.all_to_all(padded, DATA_AXIS, split_axis=0, concat_axis=0, tiled=True)
    share_M = functools.reduce(operator.add, [shares_SxM[device] for device in range(devices)])
    whole = jax.lax.all_gather(share_M, DATA_AXIS, tiled=True, to="invariant")
    ends = [int(end) for end in _ends(leaves)]
    pieces = jnp.split(whole[: flat_N.size], ends[:-1])
    return [piece.reshape(leaf.shape[1:]) for piece, leaf in zip(pieces, leaves, strict=True)]
