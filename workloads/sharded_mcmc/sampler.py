"""One transition of Hamiltonian Monte Carlo with dual averaging, by TFP, from and to a plain tree of arrays.

TFP's kernel results hold much that the next transition does not read (proposals, seeds, constants). What it does
read is a `ChainState`: a dict of arrays, small enough to look at and plain enough for a checkpoint.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
from tensorflow_probability.substrates.jax import mcmc as tfm

from workloads.sharded_mcmc.model import Position

# An energy error beyond this is a divergence, as in Stan.
MAX_ENERGY_ERROR = 1000.0


class ChainState(TypedDict):
    """All that a chain's next transition needs; the sampler adds a leading chain axis.

    Attributes:
        position: the model's parts.
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


class Info(TypedDict):
    """What one transition tells: scalars, of the chain's new state and of the proposal that led to it."""

    log_density: jax.Array
    accept_ratio: jax.Array
    step_size: jax.Array
    diverging: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """HMC with dual averaging (Hoffman and Gelman 2014, section 3.2).

    Attributes:
        log_density: position to scalar.
        part_names: order of the parts, which decides the parts' random numbers.
        step_size: that the adaptation starts from.
        num_leapfrog_steps: gradients a transition.
        num_adaptation_steps: transitions during which the step size adapts.
        target_accept: mean acceptance probability to aim at.
    """

    log_density: Callable[[Position], jax.Array]
    part_names: tuple[str, ...]
    step_size: float
    num_leapfrog_steps: int
    num_adaptation_steps: int
    target_accept: float

    def init(self, position: Position) -> ChainState:
        """The state of a chain before its first transition."""
        parts = [position[name] for name in self.part_names]
        return self._state(parts, self._kernel().bootstrap_results(parts))

    def step(self, state: ChainState, key: jax.Array, index: jax.Array) -> tuple[ChainState, Info]:
        """One transition.

        Args:
            state: see `ChainState`.
            key: typed key of this transition.
            index: int32 scalar, transitions of this chain so far.
        """
        kernel = self._kernel()
        parts = [state["position"][name] for name in self.part_names]
        results = self._kernel_results(kernel, parts, state, index)
        parts, results = kernel.one_step(parts, results, seed=jax.random.key_data(key))
        state_after = self._state(parts, results)
        log_accept_ratio = results.inner_results.log_accept_ratio
        return state_after, Info(
            log_density=state_after["log_density"],
            accept_ratio=jnp.where(jnp.isnan(log_accept_ratio), 0.0, jnp.exp(jnp.minimum(log_accept_ratio, 0.0))),
            step_size=state["step_size"],
            diverging=~(log_accept_ratio > -MAX_ENERGY_ERROR),  # NaN diverges too
        )

    def _kernel(self) -> Any:
        hmc = tfm.HamiltonianMonteCarlo(
            lambda *parts: self.log_density(dict(zip(self.part_names, parts, strict=True))),
            step_size=self.step_size,
            num_leapfrog_steps=self.num_leapfrog_steps,
        )
        return tfm.DualAveragingStepSizeAdaptation(
            hmc, num_adaptation_steps=self.num_adaptation_steps, target_accept_prob=self.target_accept
        )

    def _kernel_results(self, kernel: Any, parts: list[jax.Array], state: ChainState, index: jax.Array) -> Any:
        # The log density of these fresh results is replaced, so that the compiler drops its computation.
        fresh = kernel.bootstrap_results(parts)
        accepted = fresh.inner_results.accepted_results._replace(
            target_log_prob=state["log_density"],
            grads_target_log_prob=[state["gradient"][name] for name in self.part_names],
        )
        return fresh._replace(
            inner_results=fresh.inner_results._replace(accepted_results=accepted),
            step=index,
            new_step_size=state["step_size"],
            error_sum=[state["error_sum"]],
            log_averaging_step=[state["log_averaging_step"]],
        )

    def _state(self, parts: list[jax.Array], results: Any) -> ChainState:
        accepted = results.inner_results.accepted_results
        return ChainState(
            position=dict(zip(self.part_names, parts, strict=True)),
            log_density=accepted.target_log_prob,
            gradient=dict(zip(self.part_names, accepted.grads_target_log_prob, strict=True)),
            step_size=results.new_step_size,
            error_sum=results.error_sum[0],
            log_averaging_step=results.log_averaging_step[0],
        )
