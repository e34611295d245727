"""What is measured, over which hosts, in which order. Pure.

Sizes and bandwidths are those of nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md), so that figures can be
compared: the size is that of the whole buffer on a device (of an all-gather what it receives), the algorithm bandwidth
is size / time, and the bus bandwidth is that times a factor which makes it comparable with what a link can carry.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

PSUM, ALL_GATHER, ALL_TO_ALL, BROADCAST = "psum", "all-gather", "all-to-all", "broadcast"
# Of `n` devices: bus bandwidth by algorithm bandwidth.
BUS_FACTORS: Mapping[str, Callable[[int], float]] = {
    PSUM: lambda n: 2 * (n - 1) / n,
    ALL_GATHER: lambda n: (n - 1) / n,
    ALL_TO_ALL: lambda n: (n - 1) / n,
    BROADCAST: lambda n: 1.0,
}
SIZES = (4, 1_000, 64_000, 1_000_000, 16_000_000, 64_000_000)
ITEM_BYTES = 4  # float32
LOCAL_SHARE, ALL_SHARE = 0.1, 0.3  # of the time; the pairs have the rest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """What came of one collective of one size over one group of devices.

    Attributes:
        collective: a key of `BUS_FACTORS`.
        num_devices: that took part.
        num_bytes: the size, at least one element a device.
        repeats: launches that were timed, after one that was not.
        min_s, median_s: of a launch, from the call until the result is there on every rank; JAX's launch is in it.
    """

    collective: str
    num_devices: int
    num_bytes: int
    repeats: int
    min_s: float
    median_s: float

    @property
    def bus_bytes_per_s(self) -> float:
        """By the fastest launch, which other work on the hosts has disturbed the least."""
        return self._bus_bytes / self.min_s

    @property
    def usual_bus_bytes_per_s(self) -> float:
        """By the median launch."""
        return self._bus_bytes / self.median_s

    @property
    def _bus_bytes(self) -> float:
        return BUS_FACTORS[self.collective](self.num_devices) * self.num_bytes


def predicted_s(before: Sequence[Measurement], num_bytes: int) -> float:
    """What a launch of a larger size will take at most, going on from the last two as a straight line.

    Args:
        before: of the same collective, sizes growing; from fewer than two nothing follows, and it is 0.
        num_bytes: the larger size.
    """
    if len(before) < 2:
        return 0.0
    small, large = before[-2:]
    rise = max(0.0, large.min_s - small.min_s) / max(1, large.num_bytes - small.num_bytes)
    return large.min_s + rise * (num_bytes - large.num_bytes)


def sizes(max_bytes: int) -> list[int]:
    """The sizes to measure, in bytes, up to `max_bytes`, which is one of them."""
    return [size for size in SIZES if size < max_bytes] + [max_bytes]


def shard_elements(collective: str, num_bytes: int, num_devices: int) -> int:
    """How many elements each device puts in, so that the size is `num_bytes`, or a little more."""
    pieces = -(-num_bytes // (ITEM_BYTES * num_devices))
    if collective == ALL_GATHER:
        return pieces
    if collective == ALL_TO_ALL:
        return pieces * num_devices
    return -(-num_bytes // ITEM_BYTES)


def size_of(collective: str, elements: int, num_devices: int) -> int:
    """The size in bytes where each device puts in `elements`."""
    return ITEM_BYTES * elements * (num_devices if collective == ALL_GATHER else 1)


def rounds(num_hosts: int) -> list[list[tuple[int, int]]]:
    """Every pair of hosts once, in as few rounds as there can be: a host is in one pair of a round at most.

    A tournament by the circle method: one host stays, the others move on by one place each round.
    """
    places: list[int | None] = [*range(num_hosts), *([None] if num_hosts % 2 else [])]
    half = len(places) // 2
    found = []
    for _ in range(len(places) - 1):
        meetings = zip(places[:half], reversed(places[half:]), strict=True)
        found.append(sorted((min(a, b), max(a, b)) for a, b in meetings if a is not None and b is not None))
        places.insert(1, places.pop())
    return found


def partner(pairs: Sequence[tuple[int, int]], host: int) -> tuple[int, int] | None:
    """The pair of a round in which a host is, if it is in one."""
    return next((pair for pair in pairs if host in pair), None)
