"""Many transitions of one block of chains in one dispatch: the program that every device runs alike.

A block has the same number of chains whatever the layout, and the number of transitions is chosen at run time, so
that neither the layout nor where a run reports, saves or is continued shows in any bit of the draws.

Each device has its own copy of the program, compiled for it alone. One program over all local devices (`shard_map`)
would compile once instead of once a device, but XLA starts such a program on no device before the last one has ended
on all of them (tried on CPU: the fast one of two devices waited for the slow one at every dispatch).
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

from workloads.agreement.programs import compare_programs
from workloads.context import Context
from workloads.independent_chains.models import Model, Quantities
from workloads.independent_chains.sampler import ChainState, Sampler, Stats


class Trace(TypedDict):
    """Transitions in order; leaves have the leading axes (draws_per_dispatch, block_size)."""

    draws: Quantities
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

        def body(index: jax.Array, carry: tuple[ChainState, Trace]) -> tuple[ChainState, Trace]:
            state, trace = carry
            state, record = self._step(index, state, chain_keys)
            row = index - start
            return state, jax.tree.map(lambda rows, new: rows.at[row].set(new), trace, record)

        # Not by `eval_shape` of a step: tracing NUTS once more takes a second.
        draws = jax.eval_shape(jax.vmap(self.model.report), state["position"])
        record = Trace(draws=draws, stats=self.sampler.empty_stats(state))
        trace = jax.tree.map(lambda leaf: jnp.zeros((self.draws_per_dispatch, *leaf.shape), leaf.dtype), record)
        return jax.lax.fori_loop(start, stop, body, (state, trace))

    def _step(self, index: jax.Array, state: ChainState, chain_keys: jax.Array) -> tuple[ChainState, Trace]:
        keys = jax.vmap(lambda key: jax.random.fold_in(key, 1 + index))(chain_keys)
        state, stats = jax.vmap(self.sampler.step, in_axes=(0, 0, None))(state, keys, index)
        return state, Trace(draws=jax.vmap(self.model.report)(state["position"]), stats=stats)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceProgram:
    """`BlockProgram.advance`, compiled for one device.

    Attributes:
        device: where it runs.
        key_data: the job's base key as raw words, on the device.
        compiled: with the arguments of `BlockProgram.advance`.
    """

    device: jax.Device
    key_data: jax.Array
    compiled: Callable[..., tuple[ChainState, Trace]]

    def advance(self, state: ChainState, chains: np.ndarray, start: int, stop: int) -> tuple[ChainState, Trace]:
        """Starts the transitions `start` to `stop` - 1, and does not wait for them.

        Args:
            state: of a block, after `start` transitions; here or in host memory.
            chains: (block_size,), int32; global indices.
            start, stop: as for `BlockProgram.advance`.
        """
        chains, start, stop = jax.device_put((chains, np.int32(start), np.int32(stop)), self.device)
        return self.compiled(jax.device_put(state, self.device), chains, self.key_data, start, stop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """What this rank has compiled.

    Attributes:
        init: `BlockProgram.init` without the key, on one device: chains to state.
        devices: `{device: its program}`.
        state, trace: shapes and dtypes of a block's.
        compile_s: seconds that it took.
    """

    init: Callable[[np.ndarray], ChainState]
    devices: dict[jax.Device, DeviceProgram]
    state: ChainState
    trace: Trace
    compile_s: float


def compile_programs(program: BlockProgram, context: Context, devices: Sequence[jax.Device]) -> Programs:
    """Traces once, and compiles for all devices at the same time; every rank must call it.

    What decides the draws is the same on all ranks that have chains: the texts of both functions are compared, with all
    that the model closes over, as no collective holds these programs together.

    Args:
        program: what to compile.
        context: this rank.
        devices: of this process; maybe none.

    Raises:
        ProgramMismatchError: on every rank, naming the odd ranks and the first line that differs.
        TimeoutError: naming the ranks that did not come.
    """
    begin = time.perf_counter()
    init, advance = jax.jit(program.init), jax.jit(program.advance)
    key_data = jax.random.key_data(context.base_key)
    keys = {device: jax.device_put(key_data, device) for device in devices}
    first = devices[0] if devices else jax.local_devices()[0]
    chains, index = np.zeros(program.block_size, np.int32), np.int32(0)
    state = jax.eval_shape(init, chains, key_data)
    trace = jax.eval_shape(advance, state, chains, key_data, index, index)[1]
    arguments = (state, chains, key_data, index, index)
    with context.phase("compile"), concurrent.futures.ThreadPoolExecutor(len(devices) + 1) as pool:
        lowered_init = init.lower(*_placed((chains, key_data), first))
        lowered = [advance.lower(*_placed(arguments, device)) for device in devices]
        texts = (lowered_init.as_text(), lowered[0].as_text()) if devices else (None, None)
        for name, text in zip(("init", "advance"), texts, strict=True):
            compare_programs(context.exchange, context.host, name, text)
        compiled_init, *compiled = pool.map(lambda one: one.compile(), [lowered_init, *lowered])
    return Programs(
        init=lambda chains: compiled_init(*jax.device_put((chains, key_data), first)),
        devices={
            device: DeviceProgram(device=device, key_data=keys[device], compiled=one)
            for device, one in zip(devices, compiled, strict=True)
        },
        state=state,
        trace=trace,
        compile_s=time.perf_counter() - begin,
    )


def _placed(tree: Any, device: jax.Device) -> Any:
    sharding = SingleDeviceSharding(device)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def _chain_keys(chains: jax.Array, key_data: jax.Array) -> jax.Array:
    base_key = jax.random.wrap_key_data(key_data)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(base_key, chains)
