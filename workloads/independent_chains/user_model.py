"""A log density of the user's as a model: `--set model=./FILE.py:FUNCTION`.

The function takes a position (any pytree of real arrays, unconstrained) to its log density, a real scalar, up to a
constant. Its module says where chains start, and maybe what to report:

- `initial_position(key)`: typed PRNG key to the random start of one chain; what it returns is what is sampled
- `report(position)`: the quantities that a reader wants, a dict; by default the position's arrays by their paths
- `dims`, `coords`: names and labels of the reported variables' dimensions, as ArviZ takes them
"""

import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.errors import ConfigError
from workloads.independent_chains.models import Model, Position, report_as_sampled
from workloads.user import UserFunction

EXAMPLE = """
    def initial_position(key):  # the random start of one chain
        return {"mu": jax.random.normal(key), "theta": jnp.zeros(8)}"""


def user_model(found: UserFunction) -> Model:
    """The model of a log density and what stands beside it; `check` has looked at it before.

    Starts are cast to float32, or to float64 where JAX has it enabled, and so is the log density.

    Args:
        found: the log density.

    Raises:
        ConfigError: its module has no `initial_position`.
    """
    start = getattr(found.module, "initial_position", None)
    report = getattr(found.module, "report", None)
    if not callable(start):
        raise ConfigError(f"{found.text}: nothing says where chains start; beside it there must be, as{EXAMPLE}")

    def initial_position(key: jax.Array) -> Position:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), start(key))

    def log_density(position: Position) -> jax.Array:
        return jnp.asarray(found(position), jnp.result_type(float))

    return Model(
        initial_position=initial_position,
        log_density=log_density,
        report=(lambda position: report_as_sampled(report(position))) if callable(report) else report_as_sampled,
        dims=getattr(found.module, "dims", {}),
        coords=getattr(found.module, "coords", {}),
    )


def check(found: UserFunction) -> None:
    """Traces all that will be compiled, and touches no device.

    Args:
        found: the log density.

    Raises:
        ConfigError: what is wrong, in words.
    """
    model = user_model(found)
    raw = _shapes(found, "initial_position", found.module.initial_position, jax.eval_shape(jax.random.key, 0))
    leaves = report_as_sampled(raw)
    if not leaves:
        raise ConfigError(f"{found.text}: initial_position(key) returns no array; it must be what is sampled")
    for name, leaf in leaves.items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ConfigError(
                f"{found.text}: {name} of initial_position(key) is {_words(leaf)}; what is sampled must be real: "
                f"float32 or float64 (0.0, not 0), because chains move along the gradient"
            )
    chains = jax.eval_shape(
        jax.vmap(model.initial_position), jax.eval_shape(lambda: jax.random.split(jax.random.key(0)))
    )
    position = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), chains)
    _check_scalar(found, _shapes(found, found.function.__name__, found.function, position))
    _shapes(found, f"the gradient of {found.function.__name__}", jax.vmap(jax.grad(model.log_density)), chains)
    _check_reported(found, model, _shapes(found, "report", model.report, position))


def _check_scalar(found: UserFunction, value: Any) -> None:
    leaves = jax.tree.leaves(value)
    words = ", ".join(map(_words, leaves)) or "nothing"
    if len(leaves) != 1 or leaves[0].shape or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        raise ConfigError(
            f"{found.text}: {found.function.__name__}(position) returns {words}; it must be one real number: "
            f"the sum of all log densities, a scalar"
        )


def _check_reported(found: UserFunction, model: Model, reported: Mapping[str, Any]) -> None:
    """Makes the file of the draws from two draws of zeros: what cannot be written is better known before the run."""
    from workloads.mcmc.dataset import save_dataset

    for name, leaf in reported.items():
        if name in ("chain", "draw"):
            raise ConfigError(f"{found.text}: no variable can be called {name!r}; report(position) may rename it")
        if not (jnp.issubdtype(leaf.dtype, np.number) and not jnp.issubdtype(leaf.dtype, np.complexfloating)):
            raise ConfigError(f"{found.text}: {name} of report(position) is {_words(leaf)}; it must be real")
    draws = {name: np.zeros((1, 2, *leaf.shape), leaf.dtype) for name, leaf in reported.items()}
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_dataset(Path(folder) / "chains.nc", draws, {}, dims=model.dims, coords=model.coords)
        except Exception as error:
            shapes = ", ".join(f"{name} {_words(leaf)}" for name, leaf in reported.items())
            raise ConfigError(
                f"{found.text}: dims and coords do not fit what is reported ({shapes}): {_first_line(error)}"
            ) from error


def _shapes(found: UserFunction, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the user's returns, in shapes; where it raises, in which line of theirs."""
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame for frame in frames if frame.filename == getattr(found.module, "__file__", None)]
        where = f", line {lines[-1].lineno}: {lines[-1].line}" if lines else ""
        raise ConfigError(f"{found.text}: {what} raises {type(error).__name__}{where}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _words(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}" if leaf.shape else f"{leaf.dtype}"
