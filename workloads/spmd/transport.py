"""Pieces of memory between processes, over the devices' own network: one device of each process takes part.

The coordination service carries a megabyte a message at best; collectives carry what the network does. Every piece of
one call has the same size, so that few programs are compiled, and nothing but the piece is copied.
"""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

_HOSTS = "hosts"
WORD_BYTES = 4


def start_all_gather(piece: np.ndarray) -> jax.Array:
    """Every process gives a piece and gets all; returns when it is under way, `read` waits.

    Args:
        piece: uint8 (bytes,), of equal size on all processes, a multiple of four; not to be changed afterwards.
    """
    mesh = _mesh(tuple(range(jax.process_count())))
    return _to_all(mesh)(_rows(piece, mesh))


def place(piece: np.ndarray) -> jax.Array:
    """Brings a piece of each process to its device, for `start_shift`."""
    return _rows(piece, _mesh(tuple(range(jax.process_count()))))


def start_shift(placed: jax.Array) -> jax.Array:
    """Every process gets what the one before it has; the first what the last has."""
    return _to_next(_mesh(tuple(range(jax.process_count()))))(placed)


def start_send(piece: np.ndarray, source: int, root: int) -> jax.Array:
    """Moves a piece from one process to another; only these two call it. What the root gives is not looked at."""
    mesh = _mesh((root, source))
    return _to_first(mesh)(_rows(piece, mesh))


def start_broadcast(piece: np.ndarray, root: int) -> jax.Array:
    """Every process gets the root's piece; what the others give is not looked at."""
    mesh = _mesh(tuple(range(jax.process_count())))
    given = piece if jax.process_index() == root else np.zeros_like(piece)
    return _sum(mesh)(_rows(given, mesh))  # of integers, all but one of which are zero: no bit is lost


def read(moved: jax.Array) -> np.ndarray:
    """What this process got: uint8 (pieces, bytes), read-only."""
    return np.asarray(moved.addressable_shards[0].data).view(np.uint8)


@functools.cache
def _mesh(ranks: Sequence[int]) -> Mesh:
    first: dict[int, jax.Device] = {}
    for device in sorted(jax.devices(), key=lambda device: device.id):
        first.setdefault(device.process_index, device)
    return Mesh(np.array([first[rank] for rank in ranks]), (_HOSTS,), axis_types=(AxisType.Auto,))


def _rows(piece: np.ndarray, mesh: Mesh) -> jax.Array:
    """uint32 (processes, words), a row on each."""
    words = piece.view(np.uint32)[None]
    (device,) = (device for device in mesh.devices.flat if device.process_index == jax.process_index())
    sharding = NamedSharding(mesh, PartitionSpec(_HOSTS))
    shape = (mesh.devices.size, words.shape[1])
    return jax.make_array_from_single_device_arrays(shape, sharding, [jax.device_put(words, device)])


@functools.cache
def _to_all(mesh: Mesh) -> jax.stages.Wrapped:
    def spmd_all_gather(rows: jax.Array) -> jax.Array:
        return rows

    return jax.jit(spmd_all_gather, out_shardings=NamedSharding(mesh, PartitionSpec()))


@functools.cache
def _to_first(mesh: Mesh) -> jax.stages.Wrapped:
    def spmd_send(rows: jax.Array) -> jax.Array:
        return jax.lax.ppermute(rows, _HOSTS, [(1, 0)])

    spec = PartitionSpec(_HOSTS)
    return jax.jit(jax.shard_map(spmd_send, mesh=mesh, in_specs=spec, out_specs=spec))


@functools.cache
def _to_next(mesh: Mesh) -> jax.stages.Wrapped:
    size = mesh.devices.size

    def spmd_shift(rows: jax.Array) -> jax.Array:
        return jax.lax.ppermute(rows, _HOSTS, [(rank, (rank + 1) % size) for rank in range(size)])

    spec = PartitionSpec(_HOSTS)
    return jax.jit(jax.shard_map(spmd_shift, mesh=mesh, in_specs=spec, out_specs=spec))


@functools.cache
def _sum(mesh: Mesh) -> jax.stages.Wrapped:
    def spmd_broadcast(rows: jax.Array) -> jax.Array:
        return jax.lax.psum(rows, _HOSTS)

    return jax.jit(jax.shard_map(spmd_broadcast, mesh=mesh, in_specs=PartitionSpec(_HOSTS), out_specs=PartitionSpec()))
