"""What a model is to the sampler: parts with shapes and shardings, a log density, and predictions to score."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Position = dict[str, jax.Array]
PyTree = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Array:
    """A named array of a model, without the chain axis.

    Attributes:
        dims: what each axis counts, as the result's file names it.
        shape: without padding.
        placed_shape: as it lies on the devices, padded.
        spec: the mesh axis that each axis is sharded over.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    placed_shape: tuple[int, ...]
    spec: P

    @classmethod
    def replicated(cls, **sizes: int) -> "Array":
        """A whole copy on every device: `replicated(feature=64, label=10)`."""
        return cls(dims=tuple(sizes), shape=tuple(sizes.values()), placed_shape=tuple(sizes.values()), spec=P())

    def sharding(self, mesh: Mesh, leading: int) -> NamedSharding:
        """Of this array with `leading` unsharded axes (chains, draws) in front."""
        return NamedSharding(mesh, P(*[None] * leading, *self.spec))

    def without_padding(self, values: np.ndarray) -> np.ndarray:
        """(..., *placed_shape) to (..., *shape)."""
        kept: tuple[Any, ...] = (..., *(slice(size) for size in self.shape))
        return values[kept]

    def num_bytes(self) -> int:
        """Of one draw of one chain on the host."""
        return math.prod(self.shape) * jnp.dtype(float_dtype()).itemsize


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A posterior over sharded data. Functions see one chain; the sampler maps them over chains.

    Attributes:
        name: as submitted.
        parts: the arrays that are sampled, in a fixed order.
        identified: parts whose chains may be compared (not those that are determined up to a rotation only).
        prediction: the array that `predict` returns.
        data: arrays on the devices, passed to each function (never closed over: constants would be copied).
        log_density: (position, data) to the unnormalised log posterior density, a scalar: one global number.
        predict: (position, data) to probabilities, of `prediction`'s placed shape.
        score: (probabilities, data) to named scalars.
        assess: (probabilities averaged over all draws, on the host) to further named scalars.
        outcomes: (the same) to test predictions (n,) and whether each came true, (n,) bool: for calibration.
        data_sha256: of what was read, on any layout; '' for a model that is made by hand.
    """

    name: str
    parts: Mapping[str, Array]
    identified: tuple[str, ...]
    prediction: Array
    data: PyTree
    log_density: Callable[[Position, PyTree], jax.Array]
    predict: Callable[[Position, PyTree], jax.Array]
    score: Callable[[jax.Array, PyTree], dict[str, jax.Array]]
    assess: Callable[[np.ndarray], dict[str, float]]
    outcomes: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    data_sha256: str = ""


def float_dtype() -> Any:
    """float64 where the job says x64, else float32."""
    return jnp.result_type(float)
