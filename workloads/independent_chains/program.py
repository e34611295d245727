"""Many transitions of one block of chains in one dispatch: the program that every device runs alike.

A block has the same number of chains whatever the layout, and the number of transitions is chosen at run time, so
that neither the number of devices nor where a run reports, saves or is continued shows in any bit of the draws.
"""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from workloads.context import Context
from workloads.independent_chains.models import Model, Position
from workloads.independent_chains.sampler import ChainState, Sampler, Stats


class Trace(TypedDict):
    """Transitions in order; leaves have the leading axes (draws_per_dispatch, block_size)."""

    draws: Position
    stats: Stats


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockProgram:
    """The two functions to compile.

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
            stop: int32 scalar, at most `start + draws_per_dispatch`.

        Returns:
            The state after `stop` transitions, and a trace of which the first `stop - start` rows are filled.
        """
        chain_keys = _chain_keys(chains, key_data)

        def step(index: jax.Array, state: ChainState) -> tuple[ChainState, Trace]:
            keys = jax.vmap(lambda key: jax.random.fold_in(key, 1 + index))(chain_keys)
            state, stats = jax.vmap(self.sampler.step, in_axes=(0, 0, None))(state, keys, index)
            return state, Trace(draws=jax.vmap(self.model.report)(state["position"]), stats=stats)

        def body(index: jax.Array, carry: tuple[ChainState, Trace]) -> tuple[ChainState, Trace]:
            state, trace = carry
            state, record = step(index, state)
            row = index - start
            return state, jax.tree.map(lambda rows, new: rows.at[row].set(new), trace, record)

        record = jax.eval_shape(step, start, state)[1]
        trace = jax.tree.map(lambda leaf: jnp.zeros((self.draws_per_dispatch, *leaf.shape), leaf.dtype), record)
        return jax.lax.fori_loop(start, stop, body, (state, trace))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceProgram:
    """`BlockProgram` compiled for one device, without the base key, which is bound."""

    device: jax.Device
    init: Callable[[np.ndarray], ChainState]
    advance: Callable[[ChainState, np.ndarray, int, int], tuple[ChainState, Trace]]


def compile_for_devices(
    program: BlockProgram, context: Context, devices: Sequence[jax.Device]
) -> tuple[list[DeviceProgram], float]:
    """Compiles the program for each device, all at once in threads.

    A program over all local devices would compile once, but its bits could come to depend on their number.

    Returns:
        The programs in the order of `devices`, and the seconds that it took.
    """
    start = time.perf_counter()
    with context.phase("compile"), concurrent.futures.ThreadPoolExecutor(max_workers=len(devices)) as pool:
        compiled = list(pool.map(lambda device: _compile(program, context.base_key, device), devices))
    return compiled, time.perf_counter() - start


def shapes(program: BlockProgram) -> tuple[ChainState, Trace]:
    """Shapes and dtypes of a block's state and of its trace, as trees of `jax.ShapeDtypeStruct`."""
    chains = jax.ShapeDtypeStruct((program.block_size,), jnp.int32)
    key_data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    index = jax.ShapeDtypeStruct((), jnp.int32)
    state = jax.eval_shape(program.init, chains, key_data)
    _, trace = jax.eval_shape(program.advance, state, chains, key_data, index, index)
    return state, trace


def _compile(program: BlockProgram, base_key: jax.Array, device: jax.Device) -> DeviceProgram:
    sharding = SingleDeviceSharding(device)

    def placed(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    key_data = jax.device_put(jax.random.key_data(base_key), device)
    chains = placed(np.zeros(program.block_size, np.int32))
    index = placed(np.int32(0))
    init = jax.jit(program.init).lower(chains, placed(key_data)).compile()
    state = jax.tree.map(placed, jax.eval_shape(program.init, chains, key_data))
    advance = jax.jit(program.advance).lower(state, chains, placed(key_data), index, index).compile()

    def put(value: Any) -> jax.Array:
        return jax.device_put(np.asarray(value, np.int32), device)

    return DeviceProgram(
        device=device,
        init=lambda chains: init(put(chains), key_data),
        advance=lambda state, chains, start, stop: advance(state, put(chains), key_data, put(start), put(stop)),
    )


def _chain_keys(chains: jax.Array, key_data: jax.Array) -> jax.Array:
    base_key = jax.random.wrap_key_data(key_data)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(base_key, chains)
