"""Log densities and gradients on every rank; imports no diagnostics and no plots, which take longer than the work."""

from typing import Any

import jax
import numpy as np

from workloads.context import Context
from workloads.sharded_mcmc.config import Config
from workloads.sharded_mcmc.model import Model
from workloads.sharded_mcmc.placement import DATA_AXIS
from workloads.sharded_mcmc.setup import build_model

MATRIX = {"model": "matrix-factorization", "num_users": 21, "num_movies": 20, "rank": 2}


def gradients(context: Context, data: str, num_examples: list[int]) -> dict[str, Any]:
    """Log density and gradient of the logistic model for each number of examples, and of the factorisation."""
    mesh = context.mesh({DATA_AXIS: jax.device_count()})
    models = {"matrix": build_model(Config(**MATRIX), context, mesh)}
    for count in num_examples:
        models[f"logistic {count}"] = build_model(Config(data=data, num_examples=count), context, mesh)
    return {name: _gradient(context, model) for name, model in models.items()}


def _gradient(context: Context, model: Model) -> dict[str, Any]:
    mesh = context.mesh({DATA_AXIS: jax.device_count()})
    position = {}
    for number, (name, part) in enumerate(model.parts.items()):
        whole = np.zeros(part.placed_shape, np.result_type(float))
        whole[tuple(slice(size) for size in part.shape)] = np.random.default_rng(number).normal(0.0, 0.5, part.shape)
        whole = whole.astype(jax.numpy.result_type(float))
        position[name] = jax.make_array_from_callback(whole.shape, part.sharding(mesh, leading=0), whole.__getitem__)
    value, gradient = jax.jit(jax.value_and_grad(model.log_density))(position, model.data)
    rows = jax.tree.leaves(model.data)[0]
    return {
        "log_density": float(value),
        "dtype": str(value.dtype),
        "gradient": {
            name: model.parts[name].without_padding(leaf).tolist() for name, leaf in context.gather(gradient).items()
        },
        "local_rows": sum(shard.data.shape[0] for shard in rows.addressable_shards),
        "global_rows": rows.shape[0],
    }
