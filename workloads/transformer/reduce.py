"""Sums over the data axis whose bits do not depend on how the devices are spread over processes.

An all-reduce adds in the order of its algorithm: of four devices, two processes (gloo's ring) and one process gave
different last bits. Here each device receives its share of every device's gradient, adds the shares in the order of
the mesh, and gathers the sums. That moves as many bytes as a ring all-reduce does, in one message for all leaves.

Sums over the model axis are all-reduces still: their bits hold while that axis stays inside a process or has two
devices (a sum of two has one order), and not for a model axis of four over two processes.
"""

import functools
import itertools
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
    """Sums every leaf over its first axis, in the order of the mesh's data axis.

    Args:
        tree: of each of the S devices of the data axis, gradients by parameter, or scalars: leaves (S, ...), the first
            axis split over data and the rest as the parameter of that name is.
        mesh: with axes data and model.

    Returns:
        The same tree without the first axes, equal on all devices of the data axis.
    """
    leaves, structure = jax.tree.flatten(tree)
    specs = jax.tree.leaves(partition.specs(tree), is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    summed: dict[int, jax.Array] = {}
    for is_split in (True, False):  # one message for what the model axis splits, one for what it has copies of
        chosen = [index for index, spec in enumerate(specs) if (MODEL_AXIS in spec) == is_split]
        out_specs = [specs[index] for index in chosen]
        in_specs = ([PartitionSpec(DATA_AXIS, *spec) for spec in out_specs],)
        total = jax.shard_map(_sum_local, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True)
        if chosen:
            summed |= dict(zip(chosen, total([leaves[index] for index in chosen]), strict=True))
    return jax.tree.unflatten(structure, [summed[index] for index in range(len(leaves))])


def _sum_local(leaves: list[jax.Array]) -> list[jax.Array]:
    """On one device: from its (1, ...) of each leaf to the sum over the data axis."""
    num_devices = jax.lax.axis_size(DATA_AXIS)
    flat_N = jnp.concatenate([leaf.reshape(-1) for leaf in leaves])
    parts_SxM = jnp.pad(flat_N, (0, -flat_N.size % num_devices)).reshape(num_devices, -1)
    parts_SxM = jax.lax.all_to_all(parts_SxM, DATA_AXIS, split_axis=0, concat_axis=0, tiled=True)
    sum_M = functools.reduce(operator.add, [parts_SxM[device] for device in range(num_devices)])
    sum_N = jax.lax.all_gather(sum_M, DATA_AXIS, tiled=True, to="invarying")
    ends = itertools.accumulate(leaf.size for leaf in leaves)
    return [sum_N[end - leaf.size : end].reshape(leaf.shape[1:]) for leaf, end in zip(leaves, ends, strict=True)]
