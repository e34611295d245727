"""The check: fingerprint what this rank holds, trade fingerprints out of band, vote on every block."""

import dataclasses
import hashlib
import math
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from workloads.exchange import Exchange
from workloads.integrity.fingerprint import fingerprint_copies, fingerprint_host
from workloads.integrity.verdict import Block, Verdict, compare_structures, judge

PyTree = Any
Bounds = tuple[tuple[int, int], ...]  # (start, stop) in each dimension
Copy = tuple[int, str, str]  # number of the block in `Leaf.blocks`, device, digest: what travels

_STEP = "(step)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf as every rank should see it.

    Attributes:
        path: where it is in the tree, as `params/layer_0/kernel`.
        kind: "array" on devices, or "memory" of the host.
        blocks: the distinct pieces that it is cut into, over all devices of all hosts, in one order on every rank.
        item_bytes: bytes of one element, as NumPy counts them.
    """

    path: str
    kind: str
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


def check_replicas(tree: PyTree, *, exchange: Exchange, host: str, step: int) -> Verdict:
    """Compares all copies of every leaf bit by bit, through 64-bit fingerprints; every rank must call it.

    Two copies are the same block of the same leaf on two devices, here or on other hosts: of an array that is
    replicated over a mesh or over some of its axes, and likewise of what lies wholly in one process, such as arrays on
    a single device, NumPy arrays and Python numbers, which every rank is taken to hold alike. Leave out of the tree
    what a rank is meant to hold for itself. Data travels nowhere (about 30 bytes for each copy do) and no collective
    is started: a rank that does not come ends in a time-out that names it.

    Args:
        tree: any pytree of arrays and numbers; of every dtype, typed PRNG keys too.
        exchange: messages between the ranks.
        host: this host's name.
        step: where the caller is; ranks that are at different steps are a divergence.

    Raises:
        TimeoutError: naming the ranks that did not call.
        TypeError: a leaf that is neither array nor number.
    """
    start = time.perf_counter()
    paths = [(_path(keys), value) for keys, value in jax.tree_util.tree_flatten_with_path(tree)[0]]
    leaves = [_describe(path, value) for path, value in paths]
    copies = _fingerprint([value for _, value in paths], leaves)
    structure = {_STEP: str(step)} | {leaf.path: str(leaf) for leaf in leaves}
    digest = hashlib.sha256(repr(list(structure.items())).encode()).hexdigest()
    messages = exchange.all_gather("replicas", {"host": host, "structure": digest, "copies": copies})
    hosts = _distinct([message["host"] for message in messages])
    if len({message["structure"] for message in messages}) > 1:
        structures = exchange.all_gather("replica structures", structure)
        differences = compare_structures(dict(zip(hosts, structures, strict=True)))
        return Verdict(
            status="diverged",
            step=step,
            num_leaves=len(leaves),
            bytes_checked=0,
            bytes_single_copy=0,
            seconds=time.perf_counter() - start,
            divergences=differences,
        )
    blocks = _blocks(leaves, {host: message["copies"] for host, message in zip(hosts, messages, strict=True)})
    return judge(blocks, step=step, num_leaves=len(leaves), seconds=time.perf_counter() - start)


def _describe(path: str, value: Any) -> Leaf:
    if isinstance(value, jax.Array):
        indices = value.sharding.devices_indices_map(value.shape).values()
        blocks = {_bounds(index, value.shape) for index in indices}
        return Leaf(
            path=path,
            kind="array",
            dtype=str(value.dtype),
            shape=value.shape,
            blocks=tuple(sorted(blocks)),
            item_bytes=value.dtype.itemsize,
        )
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"cannot compare replicas of {path}: {type(value).__name__} is neither an array nor a number")
    whole = tuple((0, size) for size in array.shape)
    return Leaf(
        path=path,
        kind="memory",
        dtype=str(array.dtype),
        shape=array.shape,
        blocks=(whole,),
        item_bytes=array.dtype.itemsize,
    )


def _fingerprint(values: Sequence[Any], leaves: Sequence[Leaf]) -> list[list[Copy]]:
    """For each leaf, the copies that this process holds; all devices work at once, and are waited for once."""
    pending = [_start(value) for value in values]
    finished = jax.device_get(pending)
    copies = []
    for value, leaf, words in zip(values, leaves, finished, strict=True):
        if leaf.kind == "memory":
            copies.append([(0, "memory", fingerprint_host(np.asarray(value)))])
            continue
        # Not `shard.index`: for an array of typed keys it has the dimensions of the key data as well.
        indices = value.sharding.devices_indices_map(value.shape)
        numbers = {bounds: number for number, bounds in enumerate(leaf.blocks)}
        copies.append(
            [
                (numbers[_bounds(indices[shard.device], leaf.shape)], _device(shard.device), f"{first:08x}{second:08x}")
                for shard, (first, second) in zip(value.addressable_shards, words, strict=True)
            ]
        )
    return copies


def _start(value: Any) -> jax.Array | np.ndarray:
    """Fingerprints of a leaf's local shards, uint32 of shape (shards, 2), started and not waited for."""
    shards = [shard.data for shard in value.addressable_shards] if isinstance(value, jax.Array) else []
    if not shards or not shards[0].size:
        return np.zeros((len(shards), 2), np.uint32)
    return fingerprint_copies(shards)


def _blocks(leaves: Sequence[Leaf], copies: dict[str, list[list[Copy]]]) -> list[Block]:
    """Every block of every leaf with the copies that any host holds (`{host: for each leaf, its copies}`)."""
    blocks = []
    for position, leaf in enumerate(leaves):
        digests: list[dict[str, str]] = [{} for _ in leaf.blocks]
        for host, held_by_host in copies.items():
            for number, device, digest in held_by_host[position]:
                digests[number][f"{host}/{device}"] = digest
        blocks += [
            Block(leaf=leaf.path, index=leaf.block_index(bounds), num_bytes=leaf.block_bytes(bounds), digests=held)
            for bounds, held in zip(leaf.blocks, digests, strict=True)
        ]
    return blocks


def _distinct(hosts: list[str]) -> list[str]:
    """Names that tell the ranks apart: two copies must never count as one because their hosts are namesakes."""
    return hosts if len(set(hosts)) == len(hosts) else [f"{host} (rank {rank})" for rank, host in enumerate(hosts)]


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _device(device: jax.Device) -> str:
    return f"{device.platform}:{device.id}"


def _path(keys: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator="/") or "(the tree itself)"
