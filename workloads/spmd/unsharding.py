"""`unshard`: from stacked results on devices to one plain pytree for each shard."""

from typing import Any

import jax
import jax.numpy as jnp

from workloads.spmd.gathering import gather
from workloads.spmd.processes import path_of

PyTree = Any


def unshard(tree: PyTree) -> list[PyTree]:
    """The list of per-shard pytrees, in the order of the shards, on every host.

        results = spmd.spmd_map(roll_dice, mesh, "i", ("static", "rng"))(10, jax.random.key(0))
        for shard, result in enumerate(spmd.unshard(results)):
            print(f"shard {shard}: {result.six_count / result.roll_count:.0%} sixes")

    For metrics and the like: every host gets all of it.

    Args:
        tree: arrays whose leading axis is the shards', as `spmd_map` returns them; every host must call.

    Returns:
        A pytree of NumPy arrays for each entry of the leading axis; typed PRNG keys come as such.

    Raises:
        ValueError: no leaves, a leaf without a leading axis, or leading axes of different lengths, naming the leaf.
        TimeoutError: naming the processes that did not call.
    """
    paths = []
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not jnp.shape(leaf):
            raise ValueError(f"unshard: {path_of(keys)} is a scalar, it has no leading axis with one entry a shard")
        paths.append(path_of(keys))
    if not paths:
        raise ValueError("unshard: the tree has no leaves, so nothing tells how many shards there are")
    leaves, treedef = jax.tree.flatten(gather(tree, to="all"))
    for path, leaf in zip(paths, leaves, strict=True):
        if len(leaf) != len(leaves[0]):
            raise ValueError(
                f"unshard: {paths[0]} has {len(leaves[0])} entries, {path} has {len(leaf)}; one a shard is needed"
            )
    return [jax.tree.unflatten(treedef, [leaf[shard] for leaf in leaves]) for shard in range(len(leaves[0]))]
