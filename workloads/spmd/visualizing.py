"""`visualize`: which host and device holds which piece of an array, as text."""

import jax

from workloads.integrity.plan import Bounds, bounds_of
from workloads.spmd.text import size, table


def visualize(array: jax.Array) -> str:
    """A table of an array's pieces; of any rank, and on every host the whole.

        x = spmd.shard(np.ones((16, 8)), mesh, P("data"))
        print(spmd.visualize(x))
        # float32[16, 8]: 8 pieces of 64 B on 8 devices of 2 hosts
        # piece         rank 0 (here)  rank 1
        # [0:2, 0:8]    cpu:0
        # [2:4, 0:8]    cpu:1
        ...

    Args:
        array: of any dtype, on one device or many; needs no other host.

    Raises:
        TypeError: no array of JAX's.
    """
    if not isinstance(array, jax.Array):
        raise TypeError(f"{type(array).__name__} lies in host memory, not on devices")
    holders: dict[Bounds, dict[int, list[str]]] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        held = holders.setdefault(bounds_of(index, array.shape), {})
        held.setdefault(device.process_index, []).append(f"{device.platform}:{device.id}")
    ranks = sorted({rank for held in holders.values() for rank in held})
    here = jax.process_index()
    rows = [
        [_piece(bounds), *(", ".join(sorted(held.get(rank, []), key=_number)) for rank in ranks)]
        for bounds, held in sorted(holders.items())
    ]
    num_devices = len(array.sharding.device_set)
    piece_bytes = array.dtype.itemsize
    for length in array.sharding.shard_shape(array.shape):
        piece_bytes *= length
    heading = (
        f"{array.dtype}{list(array.shape)}: {_count(len(holders), 'piece')} of {size(piece_bytes)} on "
        f"{_count(num_devices, 'device')} of {_count(len(ranks), 'host')}"
    )
    return f"{heading}\n{table(['piece', *(f'rank {rank}' + ' (here)' * (rank == here) for rank in ranks)], rows)}"


def _piece(bounds: Bounds) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in bounds) + "]"


def _number(device: str) -> int:
    return int(device.rpartition(":")[2])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
