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
    """Blocks dealt out to devices like cards: device d of D has the blocks d, d + D, d + 2 D, ...

    Attributes:
        num_chains: chains in all.
        block_size: chains in a block; the last block is padded with copies of the last chain.
        mesh: all devices of all hosts, one axis.
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

    def blocks_of(self, place: int) -> list[int]:
        """The blocks of the device at this place of the mesh."""
        return list(range(place, self.num_blocks, self.mesh.size))

    def chains_of(self, block: int) -> np.ndarray:
        """Global chain indices of a block, (block_size,), int32.

        Padding repeats the last chain, random numbers and all: it never makes a block work longer than its chains do.
        """
        first = block * self.block_size
        return np.minimum(np.arange(first, first + self.block_size), self.num_chains - 1).astype(np.int32)

    def gather(self, context: Context, blocks: Mapping[int, PyTree], like: PyTree) -> PyTree:
        """Everything by global chain index, on every rank; a collective, so every rank must call it.

        Args:
            context: this rank.
            blocks: `{block: tree}` of this rank, leaves (block_size, ...) in host memory.
            like: a block's tree, for a rank that has none; anything with shapes and dtypes.

        Returns:
            The tree with NumPy leaves (num_chains, ...), without padding.
        """
        empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
        shards = [
            [blocks.get(place + slot * self.mesh.size, empty) for slot in range(self.blocks_per_device)]
            for place, _ in self.local_devices()
        ]
        stacked = [jax.tree.map(lambda *leaves: np.stack(leaves), *shard) for shard in shards]
        return jax.tree.map(self._by_chain, context.gather(jax.tree.map(self._sharded, *stacked)))

    def take(self, tree: PyTree, block: int) -> PyTree:
        """The rows of one block, padded: the inverse of `gather`.

        Args:
            tree: leaves (num_chains, ...).
        """
        chains = self.chains_of(block)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[chains], tree)

    def replicated(self, *copies: PyTree) -> PyTree:
        """One array of every leaf, whose copies are what this process's devices hold.

        Args:
            copies: one tree for each local device, on that device, in the order of `local_devices`.
        """
        sharding = NamedSharding(self.mesh, P())
        return jax.tree.map(
            lambda *leaves: jax.make_array_from_single_device_arrays(leaves[0].shape, sharding, list(leaves)), *copies
        )

    def _sharded(self, *local: np.ndarray) -> jax.Array:
        """A global array (devices * blocks_per_device, block_size, ...) of one piece a local device."""
        shape = (self.mesh.size * self.blocks_per_device, *local[0].shape[1:])
        pieces = [jax.device_put(piece, device) for piece, (_, device) in zip(local, self.local_devices(), strict=True)]
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(self.mesh, P(DEVICE_AXIS)), pieces)

    def _by_chain(self, array: np.ndarray) -> np.ndarray:
        by_device = array.reshape(self.mesh.size, self.blocks_per_device, *array.shape[1:])
        by_block = np.swapaxes(by_device, 0, 1)  # block = slot * number of devices + place of the device
        return np.ascontiguousarray(by_block.reshape(-1, *array.shape[2:])[: self.num_chains])
