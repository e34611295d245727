"""Many transitions of all chains in one dispatch, with a length chosen at run time.

One compiled program serves every length, so that where a run reports, saves or is continued never shows in its bits.
"""

import dataclasses
import functools
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from workloads.sharded_mcmc.model import Model, Position, PyTree, float_dtype
from workloads.sharded_mcmc.sampler import ChainState, Sampler


class State(TypedDict):
    """All that a resume needs on the devices; with the index of the next transition it continues bit for bit.

    Attributes:
        chains: with a leading chain axis on every leaf.
        prediction_sum: the model's predictions summed over all chains and all draws after the warm-up.
    """

    chains: ChainState
    prediction_sum: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """The functions to compile for one model on one mesh.

    Attributes:
        model: see `Model`.
        sampler: see `Sampler`; without a log density, which needs the data.
        mesh: with the axis `data`.
        num_chains: chains, all on every device.
        num_warmup: transitions before the first draw.
        init_scale: standard deviation of the initial position.
        draws_per_dispatch: the most transitions that one call of `advance` makes.
    """

    model: Model
    sampler: Sampler
    mesh: Mesh
    num_chains: int
    num_warmup: int
    init_scale: float
    draws_per_dispatch: int

    def init(self, data: PyTree, key_data: np.ndarray) -> State:
        """The state before the first transition.

        Args:
            data: the model's.
            key_data: the job's base key as raw words.
        """
        # `map`, not `vmap`: XLA:CPU compiles a vectorised `normal` of derived keys slowly (5.7 s against 3.4).
        positions = jax.lax.map(self._initial_position, self._chain_keys(key_data))
        chains = jax.vmap(self._sampler(data).init)(positions)
        return State(chains=chains, prediction_sum=jnp.zeros(self.model.prediction.placed_shape, float_dtype()))

    def advance(
        self, state: State, data: PyTree, key_data: np.ndarray, start: np.ndarray, stop: np.ndarray
    ) -> tuple[State, dict[str, Any]]:
        """Makes the transitions `start` to `stop` - 1 of every chain.

        Args:
            state: after `start` transitions.
            data: the model's.
            key_data: the job's base key as raw words.
            start: int32 scalar.
            stop: int32 scalar, at most `start + draws_per_dispatch`.

        Returns:
            The state after `stop` transitions, and a trace: a dict of arrays (draws_per_dispatch, chains, ...) whose
            first `stop - start` rows are filled.
        """
        step = functools.partial(self._step, data, self._chain_keys(key_data))
        record = jax.eval_shape(step, start, state)[1]
        trace = jax.tree.map(lambda leaf: jnp.zeros((self.draws_per_dispatch, *leaf.shape), leaf.dtype), record)

        def body(index: jax.Array, carry: tuple[State, dict[str, Any]]) -> tuple[State, dict[str, Any]]:
            state, trace = carry
            state, record = step(index, state)
            row = index - start
            return state, jax.tree.map(lambda rows, new: rows.at[row].set(new), trace, record)

        return jax.lax.fori_loop(start, stop, body, (state, trace))

    def _step(
        self, data: PyTree, chain_keys: jax.Array, index: jax.Array, state: State
    ) -> tuple[State, dict[str, Any]]:
        keys = jax.vmap(lambda key: jax.random.fold_in(key, 1 + index))(chain_keys)
        chains, info = jax.vmap(self._sampler(data).step, in_axes=(0, 0, None))(state["chains"], keys, index)
        predictions = jax.vmap(lambda position: self.model.predict(position, data))(chains["position"])
        scores = jax.vmap(lambda prediction: self.model.score(prediction, data))(predictions)
        is_draw = index >= self.num_warmup
        prediction_sum = state["prediction_sum"] + jnp.where(is_draw, predictions.sum(axis=0), 0.0)
        record = {"stats": {**info, **scores}, "position": chains["position"]}
        return State(chains=chains, prediction_sum=prediction_sum), record

    def _sampler(self, data: PyTree) -> Sampler:
        return dataclasses.replace(self.sampler, log_density=lambda position: self.model.log_density(position, data))

    def _chain_keys(self, key_data: np.ndarray) -> jax.Array:
        base_key = jax.random.wrap_key_data(key_data)
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(base_key, jnp.arange(self.num_chains))

    def _initial_position(self, chain_key: jax.Array) -> Position:
        key = jax.random.fold_in(chain_key, 0)
        return {
            name: self.init_scale * jax.random.normal(jax.random.fold_in(key, number), part.placed_shape, float_dtype())
            for number, (name, part) in enumerate(self.model.parts.items())
        }

    def state_shardings(self) -> State:
        """Of every leaf of a `State`."""
        replicated = NamedSharding(self.mesh, P())
        parts = {name: part.sharding(self.mesh, leading=1) for name, part in self.model.parts.items()}
        return State(
            chains=ChainState(
                position=parts,
                log_density=replicated,
                gradient=parts,
                step_size=replicated,
                error_sum=replicated,
                log_averaging_step=replicated,
            ),
            prediction_sum=self.model.prediction.sharding(self.mesh, leading=0),
        )

    def trace_shardings(self) -> dict[str, Any]:
        """Of a trace; `stats` as a whole are replicated."""
        return {
            "stats": NamedSharding(self.mesh, P()),
            "position": {name: part.sharding(self.mesh, leading=2) for name, part in self.model.parts.items()},
        }
