"""A workload of one's own: `spmd-launch submit ./examples/my_workload.py:run --set num_steps=10`.

A ridge regression by gradient descent over rows that are sharded across all devices of all hosts.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workloads import checkpoint
from workloads.context import Context
from workloads.params import param
from workloads.result import Result, digest_arrays


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What `--set` may change: types are checked, and so are bounds that a field declares."""

    num_steps: int = param(100, "gradient steps", minimum=1)
    num_rows: int = param(4096, "rows of the made-up data, over all devices", minimum=1)
    penalty: float = param(0.1, "of the squared weights", minimum=0)
    learning_rate: float = 0.1  # a plain field will do


def run(config: Config, context: Context, resume: bool = False) -> Result:
    mesh = context.mesh({"data": jax.device_count()})
    replicated = NamedSharding(mesh, PartitionSpec())
    features = np.random.default_rng(context.seed).normal(size=(config.num_rows, 8)).astype(np.float32)
    x, y = (shard_rows(array, mesh) for array in (features, features @ np.arange(8, dtype=np.float32)))

    def loss(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((x @ weights - y) ** 2) + config.penalty * jnp.sum(weights**2)

    def step(weights: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(weights, x, y)
        return weights - config.learning_rate * gradient, value

    weights, value, first = jax.device_put(np.zeros(8, np.float32), replicated), jnp.inf, 0
    found = checkpoint.resume(context, lambda step, saved: {"weights": weights}) if resume else None
    if found is not None:
        weights, first = found.state["weights"], found.step
    program, _ = context.compile("step", jax.jit(step, out_shardings=(replicated, replicated)), weights, x, y)
    saver = checkpoint.Saver(context)
    for number in range(first + 1, config.num_steps + 1):
        weights, value = program(weights, x, y)
        if number % 10 == 0 or number == config.num_steps:
            context.report(number, config.num_steps, loss=float(value))
            weights = context.inject(number, weights)  # only for --inject
            if context.save_due(number, config.num_steps):
                context.assert_replicas_equal({"weights": weights}, step=number)
                saver.save(number, {"weights": weights}, {})
    saver.wait()
    final = np.asarray(weights)
    return Result(
        metrics={"loss": float(value)},
        diagnostics={"weights": final.tolist()},
        result_digest=digest_arrays({"weights": final}),
    )


def shard_rows(array: np.ndarray, mesh: Mesh) -> jax.Array:
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
