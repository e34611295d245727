"""A tree as a checkpoint sees it: named leaves, and fingerprints that do not depend on how arrays are cut.

A rank fingerprints the blocks that its devices hold, with the positions of their elements in the whole array. The
ranks trade these parts; copies of a block must agree, and one part of every block added up is the leaf's fingerprint.
"""

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from workloads.integrity.check import distinct_hosts
from workloads.integrity.fingerprint import fingerprint_blocks, fingerprint_host, host_array
from workloads.integrity.plan import bounds_of
from workloads.integrity.verdict import Block
from workloads.storage.manifest import DEVICES, MEMORY, Leaf

PyTree = Any
Parts = dict[str, dict[str, dict[str, list[str]]]]  # {leaf: {index of a block: {fingerprint: who has it here}}}


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """`{path: leaf}`, as `opt/0/mu/wte`; None where there is nothing is left out.

    Raises:
        ValueError: two leaves have one name, here or in the storage, and would be written over each other.
    """
    found = jax.tree_util.tree_leaves_with_path(tree)
    for separator in "/.":  # as they are named here, and by Orbax
        names = [jax.tree_util.keystr(path, simple=True, separator=separator) for path, _ in found]
        (name, count), *_ = collections.Counter(names).most_common(1) or [("", 0)]
        if count > 1:
            raise ValueError(f"{count} leaves of the state have one name in a checkpoint, {name}: rename a key of them")
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in found}


def describe(leaf: Any) -> Leaf:
    """Of an array (or its shape), a NumPy array or a number; without a fingerprint."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return Leaf(kind=DEVICES, dtype=str(np.dtype(leaf.dtype)), shape=tuple(leaf.shape))
    array = host_array(leaf)
    return Leaf(kind=MEMORY, dtype=str(array.dtype), shape=array.shape)


def start_fingerprints(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Starts the devices on the blocks that they hold, and digests what is in host memory.

    Args:
        leaves: arrays without typed keys, NumPy arrays and numbers.

    Returns:
        For `finish_fingerprints`: the arrays may be donated meanwhile.
    """
    started: dict[str, Any] = {}
    for name, leaf in leaves.items():
        if not isinstance(leaf, jax.Array):
            started[name] = fingerprint_host(leaf)
            continue
        data = [shard.data for shard in leaf.addressable_shards]
        devices = [f"{shard.device.platform}:{shard.device.id}" for shard in leaf.addressable_shards]
        bounds = [bounds_of(shard.index, leaf.shape) for shard in leaf.addressable_shards]
        starts = [tuple(start for start, _ in block) for block in bounds]
        words = fingerprint_blocks(data, starts, leaf.shape) if data and data[0].size else np.zeros((len(data), 2))
        started[name] = (devices, bounds, words)
    return started


def finish_fingerprints(started: Mapping[str, Any]) -> Parts:
    """The parts that this rank holds, as JSON."""
    parts: Parts = {}
    for name, found in started.items():
        if isinstance(found, str):
            parts[name] = {"": {found: ["memory"]}}
            continue
        blocks: dict[str, dict[str, list[str]]] = {}
        for device, bounds, (first, second) in zip(*found[:2], np.asarray(found[2], np.uint32), strict=True):
            index = "[" + ", ".join(f"{start}:{stop}" for start, stop in bounds) + "]"
            blocks.setdefault(index, {}).setdefault(f"{first:08x}{second:08x}", []).append(device)
        parts[name] = blocks
    return parts


def join_blocks(hosts: Sequence[str], parts: Sequence[Parts], leaves: Mapping[str, Leaf]) -> dict[str, list[Block]]:
    """All ranks' parts as the blocks of each leaf, with every copy in the whole job.

    Args:
        hosts, parts: of each rank.
        leaves: descriptions of them.
    """
    by_host = dict(zip(distinct_hosts(hosts), parts, strict=True))
    joined = {}
    for name, leaf in leaves.items():
        copies: dict[str, dict[str, str]] = {}
        for host, part in by_host.items():
            for index, found in part[name].items():
                held = {f"{host}/{device}": digest for digest, devices in found.items() for device in devices}
                copies.setdefault(index, {}).update(held)
        num_bytes = np.dtype(leaf.dtype).itemsize * math.prod(leaf.shape) // max(1, len(copies))  # JAX cuts evenly
        joined[name] = [
            Block(leaf=name, index=index if len(copies) > 1 else "", num_bytes=num_bytes, digests=digests)
            for index, digests in copies.items()
        ]
    return joined


def add_up(blocks: Sequence[Block]) -> str:
    """The fingerprint of a leaf of these blocks: the words of each added up modulo 2^32; '' where copies differ."""
    digests = [set(block.digests.values()) for block in blocks]
    if any(len(found) > 1 for found in digests):
        return ""
    first, second = (sum(int(digest[at : at + 8], 16) for (digest,) in digests) % 2**32 for at in (0, 8))
    return f"{first:08x}{second:08x}"
