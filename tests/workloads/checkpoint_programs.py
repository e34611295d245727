"""Runs on ranks: saves a state, or restores it, on whatever layout the test asks for."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from workloads import checkpoint
from workloads.context import Context
from workloads.result import digest_arrays


class Moments(NamedTuple):
    """A NamedTuple, as optax's states are."""

    mu: Any
    nu: Any


SPECS = {
    "rows": PartitionSpec("a"),
    "both": PartitionSpec("b", "a"),
    "copies": PartitionSpec(),
    "moments": Moments(PartitionSpec("a", "b"), PartitionSpec()),
    "key": PartitionSpec(),
    "keys": PartitionSpec("a"),
    "half": PartitionSpec("b"),
}


def _values() -> dict[str, Any]:
    base = jnp.arange(64, dtype=jnp.float32).reshape(8, 8) / 7
    return {
        "rows": base,
        "both": base + 1,
        "copies": base[0],
        "moments": Moments(base * 2, jnp.int32(11)),
        "key": jax.random.key(5),
        "keys": jax.random.split(jax.random.key(6), 8),
        "half": base.astype(jnp.bfloat16),
    }


def make(context: Context, axes: dict[str, int]) -> dict[str, Any]:
    """A state of sharded and replicated arrays, keys, a NumPy array and a number."""
    mesh = context.mesh(axes)
    is_spec = lambda leaf: isinstance(leaf, PartitionSpec)  # noqa: E731
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), SPECS, is_leaf=is_spec)
    arrays = jax.jit(_values, out_shardings=shardings)()
    return {**arrays, "host": np.arange(3.0), "count": 7}


def digest(context: Context, state: Any) -> str:
    """Of every leaf's bits, gathered."""
    leaves = jax.tree_util.tree_leaves_with_path(context.gather(state))
    return digest_arrays({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves})


def save(context: Context, axes: dict[str, int], steps: list[int]) -> dict[str, Any]:
    state = make(context, axes)
    paths = [checkpoint.save(context, step, state, {"step": step, "words": ["a", "é"]}) for step in steps]
    return {"digest": digest(context, state), "paths": paths, "latest": checkpoint.latest_step(context.storage)}


def restore(context: Context, axes: dict[str, int], step: int | None) -> dict[str, Any]:
    """Restores like the shapes and shardings alone, and draws from the restored key."""
    state = make(context, axes)

    def abstract(leaf: Any) -> Any:
        is_array = isinstance(leaf, jax.Array)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) if is_array else leaf

    found_step, found, metadata = checkpoint.restore(context.storage, step, jax.tree.map(abstract, state))
    shardings = {name: found[name].sharding == state[name].sharding for name in ("rows", "both", "keys")}
    draw = jax.jit(jax.random.normal)
    same_draw = float(draw(found["key"])) == float(draw(state["key"]))
    return {
        "step": found_step,
        "digest": digest(context, found),
        "metadata": metadata,
        "shardings": shardings,
        "same_draw": same_draw,
        "types": [type(found["host"]).__name__, type(found["moments"]).__name__],
    }
