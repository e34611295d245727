"""The posteriors, by name: a log density over unconstrained reals, and the quantities to report.

Each of ours samples a dict of real arrays. What is constrained (a positive scale) is sampled through a TFP bijector,
whose log-Jacobian is part of the density, and reported in its own space.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr
from tensorflow_probability.substrates.jax import bijectors as tfb
from tensorflow_probability.substrates.jax import distributions as tfd

from workloads.errors import ConfigError

Position = Any  # a pytree of real arrays
Quantities = dict[str, jax.Array]

# Stan's rule: every unconstrained parameter starts uniformly in (-2, 2).
INIT_BOUND = 2.0


def uniform_start(shapes: Mapping[str, tuple[int, ...]]) -> Callable[[jax.Array], Position]:
    """Every number of these arrays uniform in (-2, 2)."""

    def initial_position(key: jax.Array) -> Position:
        return {
            name: jax.random.uniform(jax.random.fold_in(key, number), shape, minval=-INIT_BOUND, maxval=INIT_BOUND)
            for number, (name, shape) in enumerate(shapes.items())
        }

    return initial_position


def report_as_sampled(position: Position) -> Quantities:
    """The arrays of a tree by their paths, as `layer.weight`; a lone array is called `position`.

    Raises:
        ConfigError: two would have one name.
    """
    leaves = jax.tree_util.tree_leaves_with_path(position)
    # In a netCDF file `/` leads to a group.
    names = [keystr(path, simple=True, separator=".").replace("/", ".") or "position" for path, _ in leaves]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"two arrays would both be called {twice!r}")
    return {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A posterior.

    Attributes:
        initial_position: typed PRNG key of one chain to its random start, unconstrained.
        log_density: position to scalar, up to a constant.
        report: position to `{variable: array}`, the quantities that a reader wants.
        dims, coords: names and labels of the reported variables' dimensions, as ArviZ takes them.
    """

    initial_position: Callable[[jax.Array], Position]
    log_density: Callable[[Position], jax.Array]
    report: Callable[[Position], Quantities] = report_as_sampled
    dims: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    coords: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)


GAUSSIAN_COVARIANCE = np.array([[1.0, 0.6], [0.6, 1.0]])


def _gaussian(position: Position) -> jax.Array:
    scale_tril = jnp.asarray(np.linalg.cholesky(GAUSSIAN_COVARIANCE), position["x"].dtype)
    return tfd.MultivariateNormalTriL(scale_tril=scale_tril).log_prob(position["x"])


# Rubin 1981; effects of coaching on test scores in eight schools, and their standard errors.
SCHOOLS = ("Choate", "Deerfield", "Phillips Andover", "Phillips Exeter", "Hotchkiss", "Lawrenceville", "St. Paul's",
           "Mt. Hermon")  # fmt: skip
SCHOOL_EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SCHOOL_ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def _report_eight_schools(position: Position) -> Quantities:
    mu, tau = position["mu"], tfb.Exp().forward(position["log_tau"])
    return {"mu": mu, "tau": tau, "theta": mu + tau * position["theta_raw"]}


def _eight_schools(position: Position) -> jax.Array:
    """posteriordb's eight_schools-noncentered: mu ~ N(0, 5), tau ~ HalfCauchy(5), theta = mu + tau * N(0, 1)."""
    quantities = _report_eight_schools(position)
    dtype = position["mu"].dtype
    effects, errors = jnp.asarray(SCHOOL_EFFECTS, dtype), jnp.asarray(SCHOOL_ERRORS, dtype)
    prior = (
        tfd.Normal(jnp.zeros((), dtype), 5.0).log_prob(position["mu"])
        + tfd.HalfCauchy(jnp.zeros((), dtype), 5.0).log_prob(quantities["tau"])
        + tfb.Exp().forward_log_det_jacobian(position["log_tau"])
        + tfd.Normal(jnp.zeros((), dtype), 1.0).log_prob(position["theta_raw"]).sum()
    )
    return prior + tfd.Normal(quantities["theta"], errors).log_prob(effects).sum()


FUNNEL_SD = 3.0


def _funnel(position: Position) -> jax.Array:
    """Neal 2003, section 8: v ~ N(0, 3), nine x ~ N(0, exp(v / 2)); hard, because no one step size fits its neck."""
    v, x = position["v"], position["x"]
    zero = jnp.zeros((), v.dtype)
    return tfd.Normal(zero, FUNNEL_SD).log_prob(v) + tfd.Normal(zero, jnp.exp(v / 2)).log_prob(x).sum()


MODELS: Mapping[str, Model] = {
    "gaussian": Model(initial_position=uniform_start({"x": (2,)}), log_density=_gaussian),
    "eight-schools": Model(
        initial_position=uniform_start({"mu": (), "log_tau": (), "theta_raw": (8,)}),
        log_density=_eight_schools,
        report=_report_eight_schools,
        dims={"theta": ("school",)},
        coords={"school": SCHOOLS},
    ),
    "funnel": Model(initial_position=uniform_start({"v": (), "x": (9,)}), log_density=_funnel),
}
