"""Runs on ranks: what a gang's rank answers to a fetch."""

from typing import Any

import jax
import numpy as np

from launcher.rank.arrays import local
from workloads.context import Context
from workloads.errors import ReplicaDivergenceError


def fetch_copies(context: Context) -> dict[str, Any]:
    """Of arrays that are copied to the devices of this host alone: equal ones, and one of which copies differ."""
    mesh = jax.make_mesh((2,), ("d",), devices=jax.local_devices())
    copied, cut = (jax.NamedSharding(mesh, spec) for spec in (jax.P(), jax.P("d")))
    values = [np.array([0.0, 1.0 + number], np.float32) for number in range(2)]
    pieces = [jax.device_put(value, device) for value, device in zip(values, mesh.devices, strict=True)]
    good = [local(jax.device_put(values[0], copied)), local(jax.device_put(np.full(2, context.rank), cut))[:1]]
    try:
        bad = str(local(jax.make_array_from_single_device_arrays((2,), copied, pieces)))
    except ReplicaDivergenceError as error:
        bad = str(error)
    return {"good": [np.asarray(array).tolist() for array in good], "bad": bad}
