"""Which device runs which chains, and how what the blocks hold comes together again by global chain index."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from workloads.context import Context

PyTree = Any

DEVICE_AXIS = "device"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """Blocks dealt out to devices like cards: of D devices, number d has the blocks d, d + D, d + 2 D, ...

    Attributes:
        num_chains: chains in all.
        block_size: chains in a block; the last block is padded with copies of the last chain.
        mesh: all devices of all hosts, one axis `device`.
    """

    num_chains: int
    block_size: int
    mesh: Mesh

    @property
    def num_blocks(self) -> int:
        return -(-self.num_chains // self.block_size)

    @property
    def blocks_per_device(self) -> int:
        """Of the busiest device."""
        return -(-self.num_blocks // self.mesh.size)

    @property
    def num_idle_devices(self) -> int:
        """Devices without a block."""
        return max(0, self.mesh.size - self.num_blocks)

    def local_devices(self) -> list[tuple[int, jax.Device]]:
        """This process's devices, each with its place in the mesh."""
        here = jax.process_index()
        return [(place, device) for place, device in enumerate(self.mesh.devices) if device.process_index == here]

    def local_blocks(self) -> list[tuple[int, jax.Device]]:
        """This process's blocks, each with its device; in an order in which the devices take turns."""
        devices = dict(self.local_devices())
        blocks = range(self.num_blocks)
        return [(block, devices[block % self.mesh.size]) for block in blocks if block % self.mesh.size in devices]

    def chains_of(self, block: int) -> np.ndarray:
        """Global chain indices of a block: (block_size,), int32.

        Padding repeats the last chain, random numbers and all: it never makes a block work longer than its chains do.
        """
        first = block * self.block_size
        return np.minimum(np.arange(first, first + self.block_size), self.num_chains - 1).astype(np.int32)

    def gather(self, context: Context, blocks: Mapping[int, PyTree], like: PyTree) -> PyTree:
        """Everything by global chain index, on every rank; a collective, so every rank must call it.

        Args:
            context: this rank.
            blocks: `{block: tree}` of this rank, leaves (block_size, ...) in host memory.
            like: a block's tree, for devices that have fewer blocks; anything with shapes and dtypes.

        Returns:
            The tree with NumPy leaves (num_chains, ...), without padding.
        """
        empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
        pieces = [
            [blocks.get(place + turn * self.mesh.size, empty) for turn in range(self.blocks_per_device)]
            for place, _ in self.local_devices()
        ]
        stacked = [jax.tree.map(lambda *leaves: np.stack(leaves)[None], *piece) for piece in pieces]
        return jax.tree.map(self._by_chain, context.gather(jax.tree.map(self._sharded, *stacked)))

    def take(self, tree: PyTree, block: int) -> PyTree:
        """The rows of one block, padded, of a tree as `gather` returns it."""
        chains = self.chains_of(block)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[chains], tree)

    def replicated(self, copies: Mapping[jax.Device, PyTree], like: PyTree) -> PyTree:
        """One array of every leaf, whose copies are what the devices that have a block hold; nothing is moved.

        Args:
            copies: this process's, each on its device; maybe none.
            like: shapes and dtypes.
        """
        busy = Mesh(self.mesh.devices[: self.num_blocks], self.mesh.axis_names, axis_types=self.mesh.axis_types)
        sharding = NamedSharding(busy, P())

        def join(leaf: Any, *held: jax.Array) -> jax.Array:
            return jax.make_array_from_single_device_arrays(leaf.shape, sharding, list(held), dtype=leaf.dtype)

        return jax.tree.map(join, like, *copies.values())

    def _sharded(self, *local: np.ndarray) -> jax.Array:
        """A global array (devices, blocks_per_device, block_size, ...) of one piece a local device."""
        shape = (self.mesh.size, *local[0].shape[1:])
        pieces = [jax.device_put(piece, device) for piece, (_, device) in zip(local, self.local_devices(), strict=True)]
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(self.mesh, P(DEVICE_AXIS)), pieces)

    def _by_chain(self, array: np.ndarray) -> np.ndarray:
        by_block = np.swapaxes(array, 0, 1)  # block = turn * number of devices + place of the device
        return np.ascontiguousarray(by_block.reshape(-1, *array.shape[3:])[: self.num_chains])
