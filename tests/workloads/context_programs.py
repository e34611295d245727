"""Runs on ranks: what a workload asks of its context across two hosts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from workloads.context import Context
from workloads.errors import ReplicaDivergenceError


def services(context: Context) -> dict[str, Any]:
    """Mesh, key, gather and replica check, with what each gave."""
    mesh = context.mesh({"data": 2, "model": 2})
    value = np.arange(24, dtype=np.float32).reshape(4, 6)
    shards = {
        spec: jax.make_array_from_callback(value.shape, NamedSharding(mesh, PartitionSpec(*spec)), value.__getitem__)
        for spec in (("data", "model"), (("data", "model"),), (None, "data"), ())
    }
    # `device_put` refuses typed keys on another process's devices.
    key = jax.jit(lambda: context.base_key, out_shardings=NamedSharding(mesh, PartitionSpec()))()
    gathered = context.gather([*shards.values(), key, value, jnp.float32(context.rank)])
    error = ""
    try:
        context.assert_replicas_equal({"w": np.array(context.rank)}, step=5)
    except ReplicaDivergenceError as caught:
        error = str(caught)
    verdict = context.assert_replicas_equal(shards[()], step=6)
    return {
        "processes": [[device.process_index for device in row] for row in mesh.devices],
        "gathered": [bool(np.array_equal(array, value)) for array in gathered[: len(shards)]],
        "types": [type(leaf).__name__ for leaf in gathered],
        "key": gathered[-3].tolist(),
        "own": float(gathered[-1]),
        "error": error,
        "checked": [verdict.status, verdict.bytes_checked],
        "first": context.is_first,
    }
