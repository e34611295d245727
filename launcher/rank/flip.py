"""`--inject flip-bit`: one bit of one copy of the state, chosen by what was asked for, or by a seeded draw."""

import random
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from launcher.faults import Fault
from workloads.faults.flip_bit import flip_bit, num_bits

PyTree = Any


def flip(state: PyTree, fault: Fault, say: Callable[[dict[str, Any]], None]) -> PyTree:
    """The state with one bit flipped in what one device (or, of NumPy arrays, this rank) holds.

    `leaf=any` takes a leaf of which another device holds the same piece: of a single copy no check can tell.

    Args:
        state: arrays on devices or in host memory.
        fault: with the options `leaf`, `index` (in the device's piece, row-major) and `bit`, or `any` for each.
        say: receives what was flipped.

    Raises:
        RuntimeError: no such leaf; the message names those that there are.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(state)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    leaves = [leaf for _, leaf in paths]
    draw = random.Random(f"{fault.place} {fault.step}")
    wanted = fault.options["leaf"]
    if wanted == "any":
        places = [place for place, leaf in enumerate(leaves) if np.size(leaf) and _has_other_copies(leaf)]
    else:
        places = [place for place, name in enumerate(names) if name == wanted]
    if not places:
        raise RuntimeError(f"--inject flip-bit leaf={wanted}: the state has {', '.join(names)}")
    place = draw.choice(places)
    leaf = leaves[place]
    on_devices = isinstance(leaf, jax.Array)
    size = int(np.prod(leaf.sharding.shard_shape(leaf.shape))) if on_devices else int(np.size(leaf))
    bits = num_bits(leaf) if on_devices else 8 * np.asarray(leaf).dtype.itemsize
    index = _number(fault.options["index"], draw, size)
    bit = _number(fault.options["bit"], draw, bits)
    leaves[place] = flip_bit(leaf, fault.place, index, bit) if on_devices else _flip_in_memory(leaf, index, bit)
    element = _element(leaf, fault.place, index)
    flipped = {"leaf": names[place], "device": fault.place, "index": index, "element": element, "bit": bit}
    say({"type": "flipped", **flipped, "in_memory": not on_devices})
    return jax.tree_util.tree_unflatten(tree, leaves)


def _has_other_copies(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array):
        return True  # every rank holds the same
    pieces = [str(index) for index in leaf.sharding.devices_indices_map(leaf.shape).values()]
    return len(set(pieces)) < len(pieces)


def _element(leaf: Any, device_number: int, index: int) -> list[int]:
    """The index in each dimension of the whole leaf, of an element of a device's piece."""
    if not isinstance(leaf, jax.Array):
        return [int(place) for place in np.unravel_index(index, np.shape(leaf))]
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    piece = leaf.sharding.devices_indices_map(leaf.shape)[devices[device_number]]
    within = np.unravel_index(index, leaf.sharding.shard_shape(leaf.shape))
    return [(part.start or 0) + int(place) for part, place in zip(piece, within, strict=True)]


def _number(text: str, draw: random.Random, below: int) -> int:
    return draw.randrange(below) if text == "any" else int(text)


def _flip_in_memory(array: np.ndarray, index: int, bit: int) -> np.ndarray:
    flipped = np.array(array)
    data = flipped.reshape(-1).view(np.uint8).reshape(flipped.size, -1)
    data[index, bit // 8] ^= np.uint8(1 << bit % 8)
    return flipped
