"""Which device runs which chains, and how what the blocks hold comes together again by global chain index."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from workloads.context import Context
from workloads.independent_chains.program import DEVICE_AXIS

PyTree = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """Blocks dealt out to devices like cards: of D devices, number d has the blocks d, d + D, d + 2 D, ...

    The blocks that all devices have at once are a round: round r has the blocks r * D to r * D + D - 1.

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
    def num_rounds(self) -> int:
        return -(-self.num_blocks // self.mesh.size)

    @property
    def num_idle_devices(self) -> int:
        """Devices without a block."""
        return max(0, self.mesh.size - self.num_blocks)

    @property
    def local_places(self) -> np.ndarray:
        """Places of this process's devices in the mesh."""
        here = jax.process_index()
        return np.array([place for place, device in enumerate(self.mesh.devices) if device.process_index == here])

    @property
    def local_mesh(self) -> Mesh:
        """This process's devices alone."""
        return Mesh(self.mesh.devices[self.local_places], self.mesh.axis_names, axis_types=self.mesh.axis_types)

    def is_busy(self, round_: int) -> np.ndarray:
        """Which of the local devices have a block in this round: (local devices,), bool."""
        return self._blocks(round_) < self.num_blocks

    def chains_of(self, round_: int) -> np.ndarray:
        """Global indices of the local chains of a round: (local devices * block_size,), int32.

        Padding repeats the last chain, random numbers and all: it never makes a block work longer than its chains do.
        """
        chains = self._blocks(round_)[:, None] * self.block_size + np.arange(self.block_size)
        return np.minimum(chains, self.num_chains - 1).astype(np.int32).ravel()

    def gather(self, context: Context, rounds: Sequence[PyTree]) -> PyTree:
        """Everything by global chain index, on every rank; a collective, so every rank must call it.

        Args:
            context: this rank.
            rounds: for each round the tree of the local chains, leaves (local devices * block_size, ...), on the host.

        Returns:
            The tree with NumPy leaves (num_chains, ...), without padding.
        """
        stacked = jax.tree.map(self._sharded, *rounds)
        return jax.tree.map(self._by_chain, context.gather(stacked))

    def replicated(self, tree: PyTree) -> PyTree:
        """Reinterprets what each device holds as its copy of one array; nothing is moved.

        Args:
            tree: leaves (local devices * n, ...), sharded over the local devices along the first axis.

        Returns:
            Leaves (n, ...), replicated over all devices of all hosts.
        """

        def relabel(leaf: jax.Array) -> jax.Array:
            copies = [
                shard.data for shard in sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
            ]
            return jax.make_array_from_single_device_arrays(copies[0].shape, NamedSharding(self.mesh, P()), copies)

        return jax.tree.map(relabel, tree)

    def _blocks(self, round_: int) -> np.ndarray:
        return round_ * self.mesh.size + self.local_places

    def _sharded(self, *rounds: np.ndarray) -> jax.Array:
        """A global array (devices, rounds, block_size, ...), sharded along the first axis."""
        local = np.stack(rounds).reshape(self.num_rounds, -1, self.block_size, *rounds[0].shape[1:])
        by_device = np.swapaxes(local, 0, 1)
        shape = (self.mesh.size, *by_device.shape[1:])
        pieces = [
            jax.device_put(piece[None], device)
            for piece, device in zip(by_device, self.mesh.devices[self.local_places], strict=True)
        ]
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(self.mesh, P(DEVICE_AXIS)), pieces)

    def _by_chain(self, array: np.ndarray) -> np.ndarray:
        by_block = np.swapaxes(array, 0, 1)  # block = round * number of devices + place of the device
        return np.ascontiguousarray(by_block.reshape(-1, *array.shape[3:])[: self.num_chains])
