"""Many transitions of one block of chains on every device of this process, in one dispatch.

The program is compiled once for all local devices (`shard_map` over them), but what a device runs is the same
whatever their number: a block always has the same number of chains, and there is no collective. How many transitions
a dispatch makes is chosen at run time. So neither the layout nor where a run reports, saves or is continued shows in
any bit of the draws. (One program for each device was tried: 2.8 s of compilation for each of them with HMC, 7.3 s
with NUTS, against 2.8 and 8.1 s for all together.)
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from workloads.context import Context
from workloads.independent_chains.models import Model, Position
from workloads.independent_chains.sampler import ChainState, Sampler, Stats

DEVICE_AXIS = "device"


class Trace(TypedDict):
    """Transitions in order; leaves have the leading axes (draws_per_dispatch, block_size)."""

    draws: Position
    stats: Stats


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockProgram:
    """What one device runs; for use under a `shard_map` with the axis `device`.

    Attributes:
        model, sampler: what a chain is.
        block_size: chains in a block.
        draws_per_dispatch: the most transitions that one call of `advance` makes.
    """

    model: Model
    sampler: Sampler
    block_size: int
    draws_per_dispatch: int

    def init(self, chains: jax.Array, key_data: jax.Array) -> ChainState:
        """The state of a block before the first transition.

        Args:
            chains: (block_size,), int32; global indices of the chains.
            key_data: the job's base key as raw words, (2,), uint32.

        Returns:
            A state whose leaves have a leading axis (block_size,).
        """
        keys = jax.vmap(lambda key: jax.random.fold_in(key, 0))(_chain_keys(chains, key_data))
        return jax.vmap(lambda key: self.sampler.init(self.model.initial_position(key)))(keys)

    def advance(
        self, state: ChainState, chains: jax.Array, key_data: jax.Array, start: jax.Array, stop: jax.Array
    ) -> tuple[ChainState, Trace]:
        """Makes the transitions `start` to `stop` - 1 of every chain of the block.

        The random numbers of a transition are a function of the base key, the chain's global index and the
        transition's index alone.

        Args:
            state: after `start` transitions.
            chains, key_data: as for `init`.
            start: int32 scalar.
            stop: (1,), int32, of this device; from `start` (nothing to do) to `start + draws_per_dispatch`.

        Returns:
            The state after `stop` transitions, and a trace of which the first `stop - start` rows are filled.
        """
        chain_keys = _chain_keys(chains, key_data)

        def body(index: jax.Array, carry: tuple[ChainState, Trace]) -> tuple[ChainState, Trace]:
            state, trace = carry
            state, record = self._step(index, state, chain_keys)
            row = index - start
            return state, jax.tree.map(lambda rows, new: rows.at[row].set(new), trace, record)

        # Not by `eval_shape` of a step: tracing NUTS once more takes a second.
        draws = jax.eval_shape(jax.vmap(self.model.report), state["position"])
        record = Trace(draws=draws, stats=self.sampler.empty_stats(state))
        return jax.lax.fori_loop(start, stop[0], body, (state, jax.tree.map(self._rows, record)))

    def _step(self, index: jax.Array, state: ChainState, chain_keys: jax.Array) -> tuple[ChainState, Trace]:
        keys = jax.vmap(lambda key: jax.random.fold_in(key, 1 + index))(chain_keys)
        state, stats = jax.vmap(self.sampler.step, in_axes=(0, 0, None))(state, keys, index)
        return state, Trace(draws=jax.vmap(self.model.report)(state["position"]), stats=stats)

    def _rows(self, leaf: Any) -> jax.Array:
        zeros = jnp.zeros((self.draws_per_dispatch, *leaf.shape), leaf.dtype)
        return jax.lax.pcast(zeros, (DEVICE_AXIS,), to="varying")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """`BlockProgram` on every device of this process.

    Arrays have a leading axis (local devices * block_size,) for the chains of all local blocks, cut over the devices.

    Attributes:
        mesh: this process's devices, axis `device`.
        init_block, advance_block: compiled.
        key_data: the job's base key as raw words.
        state, trace: shapes, dtypes and shardings.
        compile_s: seconds that compiling took.
    """

    mesh: Mesh
    init_block: Callable[..., ChainState]
    advance_block: Callable[..., tuple[ChainState, Trace]]
    key_data: jax.Array
    state: ChainState
    trace: Trace
    compile_s: float

    def init(self, chains: np.ndarray) -> ChainState:
        """The state of all local blocks before the first transition.

        Args:
            chains: (local devices * block_size,), int32; global indices.
        """
        return self.init_block(self.put(chains), self.key_data)

    def advance(self, state: ChainState, chains: np.ndarray, start: int, stops: np.ndarray) -> tuple[ChainState, Trace]:
        """Starts the transitions from `start` on every local device, and does not wait for them.

        Args:
            state: after `start` transitions.
            chains: (local devices * block_size,), int32; global indices.
            start: the first transition.
            stops: (local devices,); where each device stops.
        """
        return self.advance_block(
            state, self.put(chains), self.key_data, np.int32(start), self.put(stops.astype(np.int32))
        )

    def put(self, tree: Any) -> Any:
        """Cuts leaves along their first axis, a piece a local device."""
        return jax.device_put(tree, NamedSharding(self.mesh, P(DEVICE_AXIS)))


def compile_program(program: BlockProgram, context: Context, mesh: Mesh) -> CompiledProgram:
    """Compiles for this process's devices.

    Args:
        program: what each of them runs.
        context: this rank.
        mesh: this process's devices, one axis `device`.
    """
    along, whole = P(DEVICE_AXIS), P()
    rows = P(None, DEVICE_AXIS)
    # TFP's NUTS begins its loops with constants, which the check refuses ("manual axis types do not match"); there is
    # no collective that the check could guard, and tests hold the compiled program to that.
    checked = program.sampler.kind != "nuts"
    init = jax.jit(jax.shard_map(program.init, mesh=mesh, in_specs=(along, whole), out_specs=along, check_vma=checked))
    advance = jax.jit(
        jax.shard_map(
            program.advance,
            mesh=mesh,
            in_specs=(along, along, whole, whole, along),
            out_specs=(along, rows),
            check_vma=checked,
        )
    )

    def struct(shape: tuple[int, ...], spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=NamedSharding(mesh, spec))

    key_data = jax.device_put(np.asarray(jax.random.key_data(context.base_key)), NamedSharding(mesh, whole))
    chains = struct((mesh.size * program.block_size,), along)
    init_block, init_s = context.compile("init", init, chains, key_data)
    state = _placed(jax.eval_shape(init, chains, key_data), mesh, along)
    arguments = (state, chains, key_data, struct((), whole), struct((mesh.size,), along))
    advance_block, advance_s = context.compile("advance", advance, *arguments)
    return CompiledProgram(
        mesh=mesh,
        init_block=init_block,
        advance_block=advance_block,
        key_data=key_data,
        state=state,
        trace=_placed(jax.eval_shape(advance, *arguments)[1], mesh, rows),
        compile_s=init_s + advance_s,
    )


def _placed(tree: Any, mesh: Mesh, spec: P) -> Any:
    sharding = NamedSharding(mesh, spec)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def _chain_keys(chains: jax.Array, key_data: jax.Array) -> jax.Array:
    base_key = jax.random.wrap_key_data(key_data)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(base_key, chains)
