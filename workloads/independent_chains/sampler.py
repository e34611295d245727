"""One transition of one chain, by TFP's HMC or NUTS with dual averaging, from and to a plain tree of arrays.

TFP's kernel results hold much that the next transition does not read (proposals, seeds, constants). What it does
read is a `ChainState`: a dict of arrays, plain enough for a checkpoint.
"""

import dataclasses
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
from tensorflow_probability.substrates.jax import mcmc as tfm

from workloads.independent_chains.models import Model, Position

# An energy error beyond this is a divergence, as in Stan.
MAX_ENERGY_ERROR = 1000.0


class ChainState(TypedDict):
    """All that a chain's next transition reads, beside its index and its key.

    Attributes:
        position: the model's parameters, unconstrained.
        log_density: scalar, at the position.
        gradient: of the log density, shaped like the position.
        step_size: scalar, for the next transition.
        error_sum: scalar; dual averaging's sum of target minus acceptance probability.
        log_averaging_step: scalar; dual averaging's averaged log step size.
    """

    position: Position
    log_density: jax.Array
    gradient: Position
    step_size: jax.Array
    error_sum: jax.Array
    log_averaging_step: jax.Array


class Stats(TypedDict):
    """What one transition tells, by ArviZ's names; all scalars.

    Attributes:
        lp: log density of the draw.
        diverging: bool; the integrator's energy error exceeded 1000, or was NaN.
        step_size: of this transition.
        acceptance_rate: acceptance probability; for NUTS the mean over the trajectory.
        n_steps: int32; gradients of this transition.
    """

    lp: jax.Array
    diverging: jax.Array
    step_size: jax.Array
    acceptance_rate: jax.Array
    n_steps: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """HMC (Duane et al. 1987) or NUTS (Hoffman and Gelman 2014), with the latter's dual averaging.

    Attributes:
        model: what to sample.
        kind: "hmc" or "nuts".
        step_size: fixed, or where the adaptation starts.
        num_leapfrog_steps: gradients a transition ("hmc" only).
        max_tree_depth: doublings of a trajectory at most ("nuts" only).
        num_adaptation_steps: transitions during which the step size adapts; 0: it stays as it is.
        target_accept: mean acceptance probability to aim at.
    """

    model: Model
    kind: str
    step_size: float
    num_leapfrog_steps: int
    max_tree_depth: int
    num_adaptation_steps: int
    target_accept: float

    def init(self, position: Position) -> ChainState:
        """The state of a chain before its first transition."""
        parts, structure = jax.tree.flatten(position)
        return self._state(structure, parts, self._kernel(structure).bootstrap_results(parts))

    def step(self, state: ChainState, key: jax.Array, index: jax.Array) -> tuple[ChainState, Stats]:
        """One transition.

        Args:
            state: see `ChainState`.
            key: typed key of this transition.
            index: int32 scalar, transitions of this chain so far.
        """
        parts, structure = jax.tree.flatten(state["position"])
        kernel = self._kernel(structure)
        results = self._kernel_results(kernel, parts, state, index)
        parts, results = kernel.one_step(parts, results, seed=jax.random.key_data(key))
        state_after = self._state(structure, parts, results)
        inner = results.inner_results
        stats = Stats(
            lp=state_after["log_density"],
            diverging=self._diverging(inner),
            step_size=state["step_size"],
            acceptance_rate=jnp.exp(_log_accept_prob(inner)),
            n_steps=inner.leapfrogs_taken if self.kind == "nuts" else jnp.int32(self.num_leapfrog_steps),
        )
        return state_after, stats

    def empty_stats(self, state: ChainState) -> Stats:
        """What `step` tells, all zero, with the leading axes of the state's scalars."""
        shape, dtype = state["log_density"].shape, state["log_density"].dtype
        return Stats(
            lp=jnp.zeros(shape, dtype),
            diverging=jnp.zeros(shape, bool),
            step_size=jnp.zeros(shape, state["step_size"].dtype),
            acceptance_rate=jnp.zeros(shape, dtype),
            n_steps=jnp.zeros(shape, jnp.int32),
        )

    def _kernel(self, structure: jax.tree_util.PyTreeDef) -> Any:
        def log_density(*parts: jax.Array) -> jax.Array:
            return self.model.log_density(structure.unflatten(parts))

        if self.kind == "nuts":
            inner = tfm.NoUTurnSampler(
                log_density,
                step_size=self.step_size,
                max_tree_depth=self.max_tree_depth,
                max_energy_diff=MAX_ENERGY_ERROR,
            )
        else:
            inner = tfm.HamiltonianMonteCarlo(
                log_density, step_size=self.step_size, num_leapfrog_steps=self.num_leapfrog_steps
            )
        # With no adaptation steps TFP leaves the step size as it is.
        return tfm.DualAveragingStepSizeAdaptation(
            inner,
            num_adaptation_steps=self.num_adaptation_steps,
            target_accept_prob=self.target_accept,
            log_accept_prob_getter_fn=_log_accept_prob,
        )

    def _kernel_results(self, kernel: Any, parts: list[jax.Array], state: ChainState, index: jax.Array) -> Any:
        # The log density of these fresh results is replaced, so that the compiler drops its computation.
        fresh = kernel.bootstrap_results(parts)
        current = {
            "target_log_prob": state["log_density"],
            "grads_target_log_prob": jax.tree.leaves(state["gradient"]),
        }
        inner = fresh.inner_results
        if self.kind == "nuts":
            inner = inner._replace(**current)
        else:
            inner = inner._replace(accepted_results=inner.accepted_results._replace(**current))
        return fresh._replace(
            inner_results=inner,
            step=index,
            new_step_size=state["step_size"],
            error_sum=[state["error_sum"]],
            log_averaging_step=[state["log_averaging_step"]],
        )

    def _state(self, structure: jax.tree_util.PyTreeDef, parts: list[jax.Array], results: Any) -> ChainState:
        current = results.inner_results if self.kind == "nuts" else results.inner_results.accepted_results
        return ChainState(
            position=structure.unflatten(parts),
            log_density=current.target_log_prob,
            gradient=structure.unflatten(current.grads_target_log_prob),
            step_size=results.new_step_size,
            error_sum=results.error_sum[0],
            log_averaging_step=results.log_averaging_step[0],
        )

    def _diverging(self, inner: Any) -> jax.Array:
        if self.kind == "nuts":
            return inner.has_divergence
        return ~(inner.log_accept_ratio > -MAX_ENERGY_ERROR)  # NaN diverges too


def _log_accept_prob(inner: Any) -> jax.Array:
    """Of HMC's or NUTS's results; a NaN counts as a rejection, or it would stay in the adaptation for ever."""
    ratio = jnp.where(jnp.isnan(inner.log_accept_ratio), -jnp.inf, inner.log_accept_ratio)
    return jnp.minimum(ratio, 0.0)
