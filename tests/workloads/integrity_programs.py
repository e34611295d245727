"""Runs on ranks: builds arrays whose copies are equal, or are not, and returns the verdicts as JSON."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from workloads.context import Context
from workloads.errors import ReplicaDivergenceError
from workloads.integrity import check_replicas

Change = Callable[[np.ndarray], np.ndarray]
AXES = {"a": 2, "b": 2}
REPLICATED = PartitionSpec()


def _array(
    mesh: Mesh, value: np.ndarray, spec: PartitionSpec = REPLICATED, *, bad: dict[int, Change] | None = None
) -> jax.Array:
    """A global array from copies of our own, those on the `bad` devices (by position in the mesh) changed."""
    sharding = NamedSharding(mesh, spec)
    positions = {device: position for position, device in enumerate(mesh.devices.flat)}
    pieces = []
    for device, index in sharding.addressable_devices_indices_map(value.shape).items():
        change = (bad or {}).get(positions[device], lambda piece: piece)
        pieces.append(jax.device_put(change(np.array(value[index])), device))
    return jax.make_array_from_single_device_arrays(value.shape, sharding, pieces)


def _flip(piece: np.ndarray) -> np.ndarray:
    """Flips the lowest bit of the last byte."""
    changed = np.array(piece)
    changed.reshape(-1).view(np.uint8)[-1] ^= 1
    return changed


def _on_first_device(mesh: Mesh, value: np.ndarray) -> jax.Array:
    """An array on one device, which is wholly here on one rank, and not at all on the other."""
    device = mesh.devices.flat[0]
    pieces = [jax.device_put(value, device)] if device.process_index == jax.process_index() else []
    sharding = SingleDeviceSharding(device)
    return jax.make_array_from_single_device_arrays(value.shape, sharding, pieces, dtype=value.dtype)


def _verdict(context: Context, tree: Any, step: int = 40) -> dict[str, Any]:
    verdict = check_replicas(tree, exchange=context.exchange, host=context.host, step=step)
    message = ""
    try:
        verdict.raise_if_diverged()
    except ReplicaDivergenceError as error:
        message = str(error)
    return dataclasses.asdict(verdict) | {"message": message}


def one_host(context: Context) -> dict[str, Any]:
    """Four devices of one process."""
    mesh = context.mesh(AXES)
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    devices = list(mesh.devices.flat)
    keys = [jax.device_put(jax.random.key(int(device == devices[1])), device) for device in devices]
    everywhere = NamedSharding(mesh, REPLICATED)
    nan = np.array([np.nan, -np.nan, 0.0, -0.0], np.float32)
    dtypes = ["float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "int32", "uint16", "bool", "complex64", "int4"]
    many = {dtype: _array(mesh, np.ones((2, 3), jnp.dtype(dtype))) for dtype in dtypes}
    scenarios = {
        "clean": many | {"scalar": _array(mesh, np.float32(3)), "nan": _array(mesh, nan)},
        "clean key": {"key": jax.device_put(jax.random.key(0), everywhere)},
        "one of four": {"p": {"w": _array(mesh, w, bad={2: _flip})}, "fine": _array(mesh, w)},
        "two of four": {"w": _array(mesh, w, bad={1: _flip, 2: _flip})},
        "all differ": {"w": _array(mesh, w, bad={n: lambda piece, n=n: piece + n for n in range(4)})},
        "scalar": {"s": _array(mesh, np.float32(3), bad={3: lambda piece: np.float32(4)})},
        "key": {"k": jax.make_array_from_single_device_arrays((), everywhere, keys)},
        "partly replicated": {"w": _array(mesh, w, PartitionSpec("a"), bad={3: _flip})},
        "partly replicated, clean": {"w": _array(mesh, w, PartitionSpec("a")), "v": _array(mesh, w)},
        "sharded only": {"w": _array(mesh, w, PartitionSpec(("a", "b")))},
        "one device": {"w": jnp.ones(5), "n": np.ones(3), "x": 1.5},
        "empty": {},
        "empty arrays": {"w": _array(mesh, np.ones((0, 3), np.float32))},
        "many leaves": {f"leaf {n}": _array(mesh, w, bad={0: _flip}) for n in range(20)},
    }
    return {name: _verdict(context, tree) for name, tree in scenarios.items()}


def two_hosts(context: Context) -> dict[str, Any]:
    """Two processes of two devices; axis a lies across the hosts, axis b inside."""
    mesh, second = context.mesh(AXES), context.rank == 1
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    ours = np.full(3, 100.0 * context.rank, np.float32)  # what jit(np_array) makes of a host-dependent value
    from_callback = jax.make_array_from_callback((3,), NamedSharding(mesh, REPLICATED), lambda index: ours[index])
    scenarios = {
        "clean": {"w": _array(mesh, w), "one": jnp.ones(5), "n": np.array([np.nan, 1.0]), "x": 1.5, "none": None},
        "one of four": {"w": _array(mesh, w, bad={3: _flip})},
        "host-dependent": {"w": from_callback},
        "across hosts": {"w": _array(mesh, w, PartitionSpec("b"), bad={2: _flip})},
        "inside hosts": {"w": _array(mesh, w, PartitionSpec("a"), bad={2: _flip})},
        "numpy": {"n": np.array([1.0, 2.0 + context.rank])},
        "number": {"x": 0.1 + 0.2 if second else 0.3},
        "one device": {"w": jnp.arange(4) + context.rank},
        "shapes": {"w": np.ones(3 + context.rank), "v": np.ones(2)},
        "dtypes": {"w": jnp.ones(3, jnp.float32 if second else jnp.bfloat16)},
        "trees": {"w": np.ones(3)} | ({"extra": np.ones(1)} if second else {}),
        "kinds": {"w": np.ones(3, np.float32) if second else jnp.ones(3)},
        "cuts": {"w": _array(mesh, w, PartitionSpec("a") if second else REPLICATED)},
        "one of many leaves": {f"leaf {n}": _array(mesh, w, bad={0: _flip} if n == 137 else {}) for n in range(300)},
        "here and there": {"w": _on_first_device(mesh, w), "v": _array(mesh, w)},
    }
    verdicts = {name: _verdict(context, tree) for name, tree in scenarios.items()}
    verdicts["steps"] = _verdict(context, {"w": np.ones(1)}, step=40 + context.rank)
    namesake = dataclasses.replace(context, host="localhost")
    verdicts["namesakes"] = _verdict(namesake, {"n": np.array([context.rank])})
    return verdicts
