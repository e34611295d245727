"""A workload of one's own: `spmd-launch submit ./my_workload.py:run --set num_steps=200`.

Ridge regression by gradient descent over rows that lie on all devices of all hosts. Each host runs this file as it is;
`test_my_workload.py` runs it in one process.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from workloads import checkpoint, spmd
from workloads.context import Context
from workloads.errors import ConfigError
from workloads.layout import Layout
from workloads.params import param
from workloads.result import Result, digest_arrays

TRUE_WEIGHTS = np.linspace(-1, 1, 8, dtype=np.float32)
State = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What `--set` may change: types are checked, and so are bounds that a field declares."""

    num_steps: int = param(100, "gradient steps", minimum=1)
    num_rows: int = param(4096, "rows of the made-up data, over all devices", minimum=1)
    num_blocks: int = param(8, "blocks of rows, dealt out to the devices; the last bits depend on it", minimum=1)
    penalty: float = param(0.1, "of the squared weights", minimum=0)
    learning_rate: float = 0.05  # a plain field will do

    def check(self, layout: Layout) -> None:
        """Says no before anything starts where the job's hosts and devices do not suit."""
        if self.num_blocks % layout.num_devices:
            raise ConfigError(f"num_blocks={self.num_blocks}: must be a multiple of the {layout.num_devices} devices")
        if self.num_rows % self.num_blocks:
            raise ConfigError(f"num_rows={self.num_rows}: must be a multiple of num_blocks={self.num_blocks}")


def make_data(config: Config, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features (blocks, rows, 8) and targets (blocks, rows); equal on every host, because the seed is."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(config.num_blocks, config.num_rows // config.num_blocks, 8)).astype(np.float32)
    return x, x @ TRUE_WEIGHTS + random.normal(size=x.shape[:2]).astype(np.float32)


def make_step(config: Config, mesh: Mesh) -> Callable[[State, jax.Array, jax.Array], State]:
    """One step of gradient descent."""
    everywhere = NamedSharding(mesh, P())

    def squares(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum((x @ weights - y) ** 2)

    def step(state: State, x: jax.Array, y: jax.Array) -> State:
        weights = state["weights"]
        of_blocks = jax.vmap(jax.value_and_grad(squares), in_axes=(None, 0, 0))(weights, x, y)
        # All blocks' sums to every device, which adds them in one order: the same bits on any number of hosts.
        sums, gradients = jax.lax.with_sharding_constraint(of_blocks, everywhere)
        loss = jnp.sum(sums) / config.num_rows + config.penalty * jnp.sum(weights**2)
        gradient = jnp.sum(gradients, axis=0) / config.num_rows + 2 * config.penalty * weights
        return {"weights": weights - config.learning_rate * gradient, "loss": loss}

    return jax.jit(step, out_shardings=everywhere)


def run(config: Config, context: Context, resume: bool = False) -> Result:
    """Called on every host, at the same time; `context` knows which one this is."""
    mesh = context.mesh({"data": jax.device_count()})
    x, y = spmd.shard(make_data(config, context.seed), mesh, P("data"))
    state = spmd.shard({"weights": np.zeros(8, np.float32), "loss": np.float32(0)}, mesh, P())
    done = 0
    found = checkpoint.resume(context, lambda step, metadata: state) if resume else None
    if found is not None:  # none: it ended before there was a checkpoint
        state, done = found.state, found.step

    step, _ = context.compile("step", make_step(config, mesh), state, x, y)
    saver = checkpoint.Saver(context)
    for number in range(done + 1, config.num_steps + 1):
        state = step(state, x, y)
        if number % 10 and number < config.num_steps:
            continue
        context.report(number, config.num_steps, loss=float(state["loss"]))  # `status --watch`, metrics.jsonl
        state = context.inject(number, state)  # where `--inject` makes something fail
        if context.save_due(number, config.num_steps):
            context.assert_replicas_equal(state, step=number)  # all devices' copies, bit by bit
            saver.save(number, state, {})
    saver.wait()

    weights = np.asarray(state["weights"])
    if context.is_first:  # what rank 0 leaves there is in `results`
        np.save(context.results_folder() / "weights.npy", weights)
    return Result(
        metrics={"loss": float(state["loss"])},
        diagnostics={"weights": weights.tolist()},
        result_digest=digest_arrays({"weights": weights}),  # must be the same on all hosts
    )
