"""What each device puts into a collective, and what must come out of it, to the bit. NumPy only.

Values are whole numbers below 1021, so that their sums are exact in float32 in any order.
"""

import dataclasses

import numpy as np

from workloads.bandwidth_check.plan import ALL_GATHER, ALL_TO_ALL, BROADCAST, PSUM

PERIOD = 1021  # a prime: no piece of a power of two begins as another does
STRIDE = 31


def put_in(device: int, elements: int, start: int = 0) -> np.ndarray:
    """What a device puts in: (elements,) float32, from its element `start` on.

    Args:
        device: its place in the mesh.
        elements: how many.
        start: the first of them.
    """
    period = np.arange(PERIOD, dtype=np.float32)
    return np.resize(np.roll(period, -(STRIDE * device + start)), elements)


def expected(collective: str, device: int, num_devices: int, elements: int) -> np.ndarray:
    """What a device must have after the collective: (size,) float32.

    Args:
        collective: a key of `plan.BUS_FACTORS`.
        device: its place in the mesh.
        num_devices: in the mesh.
        elements: that each device put in.
    """
    devices = range(num_devices)
    if collective == PSUM:
        return np.resize(np.sum([put_in(source, PERIOD) for source in devices], axis=0), elements)
    if collective == ALL_GATHER:
        return np.concatenate([put_in(source, elements) for source in devices])
    if collective == ALL_TO_ALL:
        piece = elements // num_devices
        return np.concatenate([put_in(source, piece, device * piece) for source in devices])
    assert collective == BROADCAST, collective
    return put_in(0, elements)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrong:
    """The first wrong element of what a device has.

    Attributes:
        index: where.
        got, wanted: its value, and what it must be.
        source: the device that it came from; None: from all.
    """

    index: int
    got: float
    wanted: float
    source: int | None


def first_wrong(collective: str, device: int, num_devices: int, elements: int, got: np.ndarray) -> Wrong | None:
    """Where what a device has differs from what it must have, if it does; arguments as for `expected`."""
    wanted = expected(collective, device, num_devices, elements)
    if np.array_equal(got, wanted):
        return None
    index = int(np.argmax(got != wanted))
    source = {
        ALL_GATHER: index * num_devices // len(wanted),
        ALL_TO_ALL: index * num_devices // len(wanted),
        BROADCAST: 0,
    }
    return Wrong(index=index, got=float(got[index]), wanted=float(wanted[index]), source=source.get(collective))
