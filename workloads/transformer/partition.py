"""Which axis of the mesh each array is split over: the one place where arrays and mesh axes meet.

Megatron's scheme (arXiv:1909.08053): heads, feed-forward width and vocabulary are split over the model axis, so that a
block sums over it twice forwards; everything else of the model is on every device. Rows of the batch are split over
the data axis.
"""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workloads.transformer.config import DATA_AXIS, MODEL_AXIS

PyTree = Any

COPIES = PartitionSpec()
BATCHES = PartitionSpec(None, DATA_AXIS, None)  # (step, row, position)
# Of one group of rows; the groups are mapped over the data axis (`reduce`).
RESIDUAL = PartitionSpec(None, None, None)  # (row, position, width)
LOGITS = PartitionSpec(None, None, MODEL_AXIS)  # (row, position, character)

# By the parameter's name; its gradient and its moments have the same name and the same shape.
_PARAMETERS = {
    "embedding": PartitionSpec(MODEL_AXIS, None),  # (character, width)
    "qkv": PartitionSpec(None, None, MODEL_AXIS, None),  # (width, which of three, head, head's width)
    "attention_out": PartitionSpec(MODEL_AXIS, None, None),  # (head, head's width, width)
    "ff_in": PartitionSpec(None, MODEL_AXIS),  # (width, feed-forward width)
    "ff_out": PartitionSpec(MODEL_AXIS, None),  # (feed-forward width, width)
}


def specs(tree: PyTree) -> PyTree:
    """A `PartitionSpec` for each leaf of parameters, gradients or optimizer state, by its name."""

    def spec(path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
        return _PARAMETERS.get(str(getattr(path[-1], "key", "")), COPIES)

    return jax.tree_util.tree_map_with_path(spec, tree)


def shardings(tree: PyTree, mesh: Mesh) -> PyTree:
    """`specs` as `NamedSharding`s."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs(tree), is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )


def copies(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, COPIES)


def constrain(array: jax.Array, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """Holds an intermediate to its sharding, so that the partitioner does not choose another."""
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))
