"""Blocks of many arrays as one row of bytes, of which any stretch can be read or written without copying the rest."""

import bisect
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from workloads.integrity.plan import Bounds

# Elements divide it (see `carried`), so that a stretch that begins and ends at multiples of it cuts none; and memory
# that begins at one is given to a CPU device as it lies.
ALIGNMENT = 64
LEAST_PIECE_BYTES = 4096
# A launch costs a CPU's collectives about a millisecond; larger pieces leave the processor's cache.
MOST_PIECE_BYTES = 8 * 2**20

# Elements `[start, stop)` of a block, row-major.
Read = Callable[[int, int], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """A block of an array.

    Attributes:
        leaf: number of the array.
        bounds: start and stop in each of its dimensions.
        dtype: of its elements.
    """

    leaf: int
    bounds: Bounds
    dtype: np.dtype

    @property
    def size(self) -> int:
        return math.prod(stop - start for start, stop in self.bounds)

    @property
    def num_bytes(self) -> int:
        """In the row, up to where the next block begins."""
        return -(-self.size * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT

    @property
    def index(self) -> tuple[Any, ...]:
        return (..., *(slice(*bounds) for bounds in self.bounds))  # so that of a scalar too it is a view


class Row:
    """Blocks one after the other, each beginning at a multiple of `ALIGNMENT`.

    Attributes:
        blocks: in this order.
        num_bytes: of all.
    """

    def __init__(self, blocks: Iterable[Block]):
        self.blocks = tuple(blocks)
        self._starts = list(itertools.accumulate((block.num_bytes for block in self.blocks), initial=0))
        self.num_bytes = self._starts[-1]

    def read(self, reads: Sequence[Read], start: int, size: int) -> np.ndarray:
        """Bytes `[start, start + size)`, both multiples of `ALIGNMENT`; between blocks, and beyond the end, anything.

        Args:
            reads: of each block.

        Returns:
            uint8 (size,), which may be the memory of a block itself.
        """
        stretch: np.ndarray | None = None
        for number, offset, first, last in self._within(start, size):
            values = np.ascontiguousarray(reads[number](first, last)).view(np.uint8)
            if values.size == size:
                return values
            stretch = aligned_empty(size) if stretch is None else stretch
            stretch[offset : offset + values.size] = values
        return aligned_empty(size) if stretch is None else stretch

    def write(self, arrays: Sequence[np.ndarray], start: int, stretch: np.ndarray) -> None:
        """Puts a stretch where it belongs.

        Args:
            arrays: by number of the leaf.
            start: of the stretch.
            stretch: uint8 (bytes,).
        """
        for number, offset, first, last in self._within(start, stretch.size):
            dtype = self.blocks[number].dtype
            values = stretch[offset : offset + (last - first) * dtype.itemsize].view(dtype)
            self._put(arrays, number, first, values)

    def copy(self, reads: Sequence[Read], arrays: Sequence[np.ndarray], start: int, size: int) -> None:
        """`read` and `write` of what lies here, without a stretch between."""
        for number, _, first, last in self._within(start, size):
            self._put(arrays, number, first, reads[number](first, last))

    def _put(self, arrays: Sequence[np.ndarray], number: int, first: int, values: np.ndarray) -> None:
        """Elements of a block, from the `first` on."""
        target = arrays[self.blocks[number].leaf][self.blocks[number].index]
        if target.flags.c_contiguous:
            target.reshape(-1)[first : first + values.size] = values
        else:
            target.flat[first : first + values.size] = values

    def _within(self, start: int, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Block, offset in the stretch, first and last element of what a stretch has of each block."""
        for number in range(bisect.bisect_right(self._starts, start) - 1, len(self.blocks)):
            begin, block = self._starts[number], self.blocks[number]
            if begin >= start + size:
                return
            item = block.dtype.itemsize
            low, high = max(start, begin), min(start + size, begin + block.size * item)
            if low < high:
                yield number, low - start, (low - begin) // item, (high - begin) // item


def aligned_empty(size: int) -> np.ndarray:
    """uint8 (size,), beginning at a multiple of `ALIGNMENT`."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size]


def piece_bytes(most: int, length: int) -> int:
    """Bytes of a piece of a row: no more than there is to move.

    Args:
        most: that there is room for.
        length: of the row.
    """
    wanted = max(LEAST_PIECE_BYTES, min(most, length, MOST_PIECE_BYTES))
    return -(-wanted // ALIGNMENT) * ALIGNMENT


def carried(array: np.ndarray) -> np.ndarray:
    """An array as a row carries it: where elements would be cut (text, structs), as their bytes in a new last axis."""
    if array.itemsize and ALIGNMENT % array.itemsize == 0:
        return array
    return np.ndarray((*array.shape, array.itemsize), np.uint8, buffer=np.require(array, requirements="C"))


def read_from(data: jax.Array | np.ndarray) -> Read:
    """Elements of a block that is here; on the CPU where they lie, from other devices only those asked for."""
    if isinstance(data, jax.Array) and next(iter(data.devices())).platform != "cpu":
        return lambda start, stop: np.asarray(_flat_slice(data, start, size=stop - start))
    array = np.asarray(data)
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    return lambda start, stop: flat[start:stop]


@functools.partial(jax.jit, static_argnames="size")
def _flat_slice(data: jax.Array, start: int | jax.Array, *, size: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(data.reshape(-1), start, size)
