"""What a check of a tree has to do, worked out once for each structure: which copies lie here, who holds the rest."""

import collections
import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from workloads.integrity.fingerprint import host_array

Bounds = tuple[tuple[int, int], ...]  # (start, stop) in each dimension

# Leaves are compared in at most so many buckets: what every rank posts in a check is bounded, however large the tree.
MOST_BUCKETS = 64

# XLA compiles one program for many leaves faster than one for each; the limit keeps very large trees from a huge one.
MOST_LEAVES_IN_A_PROGRAM = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf as every rank should see it.

    Attributes:
        path: where it is in the tree, as `params/layer_0/kernel`.
        kind: "array" on devices, "key" for one of typed PRNG keys, or "memory" of the host.
        blocks: the distinct pieces that it is cut into, over all devices of all hosts, in one order on every rank.
        item_bytes: bytes of one element, as NumPy counts them.
    """

    path: str
    kind: Literal["array", "key", "memory"]
    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[Bounds, ...]
    item_bytes: int

    def __str__(self) -> str:
        # JAX cuts evenly: shape and number of pieces in each dimension determine the blocks.
        cuts = [len({bounds[axis] for bounds in self.blocks}) for axis in range(len(self.shape))]
        cut = f", cut {'x'.join(map(str, cuts))}" if len(self.blocks) > 1 else ""
        return f"{self.dtype}{list(self.shape)}{cut}" + (" in host memory" if self.kind == "memory" else "")

    def block_bytes(self, bounds: Bounds) -> int:
        return self.item_bytes * math.prod(stop - start for start, stop in bounds)

    def block_index(self, bounds: Bounds) -> str:
        return "" if len(self.blocks) == 1 else "[" + ", ".join(f"{start}:{stop}" for start, stop in bounds) + "]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copy:
    """One copy of a block in this process.

    Attributes:
        leaf, block: numbers in `Plan.leaves` and `Leaf.blocks`.
        device: as `cpu:0`, or "memory".
        shard: its number among the leaf's addressable shards; None in host memory.
        ranks: who should hold copies of this block.
    """

    leaf: int
    block: int
    device: str
    shard: int | None
    ranks: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Leaves on the same devices, which one program fingerprints.

    Attributes:
        leaves: numbers in `Plan.leaves`.
        copies: int (devices, leaves), numbers in `Plan.copies`.
    """

    leaves: tuple[int, ...]
    copies: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Filter:
    """Blocks that the same ranks hold, compared at once.

    Attributes:
        copies: int, numbers in `Plan.copies` of the first local copy of each block.
        blocks: which blocks they are, as bytes; equal on all ranks that hold the same.
    """

    copies: np.ndarray
    blocks: bytes


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """The structure of a tree, and what lies here of it.

    Attributes:
        structure: `{path: description}`, equal on all ranks.
        digest: of the structure.
        copies: in this process, by leaf, and within a leaf by the number of the device.
        first: int (copies,), for each copy the number of the first local copy of the same block.
        filters: by name, which says bucket and ranks.
        batches: what is to be launched.
        bytes_checked, bytes_single_copy: int64 (leaves,), of distinct data with and without a second copy anywhere.
    """

    leaves: tuple[Leaf, ...]
    structure: dict[str, str]
    digest: str
    copies: tuple[Copy, ...]
    first: np.ndarray
    filters: dict[str, Filter]
    batches: tuple[Batch, ...]
    bytes_checked: np.ndarray
    bytes_single_copy: np.ndarray

    def bucket(self, leaf: int) -> int:
        """In which bucket a leaf is compared."""
        return leaf * min(len(self.leaves), MOST_BUCKETS) // len(self.leaves)


def make_plan(paths: Sequence[str], values: Sequence[Any], *, num_ranks: int) -> Plan:
    """Works out the plan for these leaves; what lies wholly in one process, every rank is taken to hold alike.

    Raises:
        TypeError: a leaf that is neither array nor number.
    """
    leaves = tuple(_describe(path, value) for path, value in zip(paths, values, strict=True))
    copies: list[Copy] = []
    counts = np.zeros((2, len(leaves)), np.int64)
    for number, (leaf, value) in enumerate(zip(leaves, values, strict=True)):
        held, num_copies = _locate(number, leaf, value, tuple(range(num_ranks)))
        for bounds, among in zip(leaf.blocks, num_copies, strict=True):
            counts[int(among < 2), number] += leaf.block_bytes(bounds)
        copies += held
    first: dict[tuple[int, int], int] = {}
    positions = [first.setdefault((copy.leaf, copy.block), number) for number, copy in enumerate(copies)]
    structure = {leaf.path: str(leaf) for leaf in leaves}
    plan = Plan(
        leaves=leaves,
        structure=structure,
        digest=hashlib.sha256(repr(list(structure.items())).encode()).hexdigest(),
        copies=tuple(copies),
        first=np.array(positions, np.int64),
        filters={},
        batches=_batches(leaves, copies),
        bytes_checked=counts[0],
        bytes_single_copy=counts[1],
    )
    return dataclasses.replace(plan, filters=_filters(plan))


def _batches(leaves: Sequence[Leaf], copies: Sequence[Copy]) -> tuple[Batch, ...]:
    held = collections.defaultdict(list)  # by leaf
    for number, copy in enumerate(copies):
        if copy.shard is not None and leaves[copy.leaf].block_bytes(leaves[copy.leaf].blocks[copy.block]):
            held[copy.leaf].append(number)
    alike = collections.defaultdict(list)  # by devices
    for leaf, numbers in held.items():
        alike[tuple(copies[number].device for number in numbers)].append(leaf)
    pieces = [
        found[start : start + MOST_LEAVES_IN_A_PROGRAM]
        for found in alike.values()
        for start in range(0, len(found), MOST_LEAVES_IN_A_PROGRAM)
    ]
    return tuple(Batch(leaves=tuple(piece), copies=np.array([held[leaf] for leaf in piece]).T) for piece in pieces)


def _filters(plan: Plan) -> dict[str, Filter]:
    numbers = collections.defaultdict(list)
    for number in np.unique(plan.first).tolist():
        copy = plan.copies[number]
        numbers[f"{plan.bucket(copy.leaf)}/{','.join(map(str, copy.ranks))}"].append(number)
    filters = {}
    for name, found in numbers.items():
        blocks = [(plan.copies[number].leaf, plan.copies[number].block) for number in found]
        filters[name] = Filter(copies=np.array(found, np.int64), blocks=np.array(blocks, np.int64).tobytes())
    return filters


def _locate(number: int, leaf: Leaf, value: Any, ranks: tuple[int, ...]) -> tuple[list[Copy], list[int]]:
    """The copies of a leaf in this process, and how many there are of each block in the whole job."""
    if leaf.kind == "memory":
        return [Copy(leaf=number, block=0, device="memory", shard=None, ranks=ranks)], [len(ranks)]
    # Not `shard.index`: for an array of typed keys it has the dimensions of the key data as well.
    indices = value.sharding.devices_indices_map(value.shape)
    numbers = {bounds: block for block, bounds in enumerate(leaf.blocks)}
    blocks = {device: numbers[bounds_of(index, value.shape)] for device, index in indices.items()}
    everywhere = value.sharding.is_fully_addressable
    processes = collections.defaultdict(set)
    for device, block in blocks.items():
        processes[block].add(device.process_index)
    held = [
        Copy(
            leaf=number,
            block=blocks[shard.device],
            device=f"{shard.device.platform}:{shard.device.id}",
            shard=position,
            ranks=ranks if everywhere else tuple(sorted(processes[blocks[shard.device]])),
        )
        for position, shard in sorted(enumerate(value.addressable_shards), key=lambda item: item[1].device.id)
    ]
    counts = collections.Counter(blocks.values())
    return held, [counts[block] * (len(ranks) if everywhere else 1) for block in range(len(leaf.blocks))]


def _describe(path: str, value: Any) -> Leaf:
    if isinstance(value, jax.Array):
        indices = value.sharding.devices_indices_map(value.shape).values()
        return Leaf(
            path=path,
            kind="key" if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) else "array",
            dtype=str(value.dtype),
            shape=value.shape,
            blocks=tuple(sorted({bounds_of(index, value.shape) for index in indices})),
            item_bytes=value.dtype.itemsize,
        )
    array = host_array(value)
    if array.dtype.hasobject:
        raise TypeError(f"cannot compare replicas of {path}: {type(value).__name__} is neither an array nor a number")
    return Leaf(
        path=path,
        kind="memory",
        dtype=str(array.dtype),
        shape=array.shape,
        blocks=(tuple((0, size) for size in array.shape),),
        item_bytes=array.dtype.itemsize,
    )


def bounds_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    """Start and stop in each dimension."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def holders(array: jax.Array) -> dict[Bounds, set[int]]:
    """For each distinct block of an array the ranks that hold it, in one order on all of them."""
    found: dict[Bounds, set[int]] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        found.setdefault(bounds_of(index, array.shape), set()).add(device.process_index)
    return dict(sorted(found.items()))
