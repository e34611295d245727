"""Flax over all hosts, parameters sharded from their first moment: linen with a TrainState, and nnx."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()

mesh = jax.make_mesh((jax.device_count() // 2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
BATCH, WIDTH, STEPS = 16, 8, 4


def batch(step: int) -> tuple[jax.Array, jax.Array]:
    """x[BATCH, WIDTH] and y[BATCH], of which each process loads its rows."""
    x = np.sin(np.arange(BATCH * WIDTH, dtype=np.float32) * (step + 1)).reshape(BATCH, WIDTH)
    parts = (x, np.cos(x.sum(1)))
    sharding = NamedSharding(mesh, P("data"))
    return tuple(
        jax.make_array_from_callback(part.shape, sharding, lambda index, part=part: part[index]) for part in parts
    )


class Network(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        split = linen.with_partitioning(linen.initializers.lecun_normal(), (None, "model"))
        joined = linen.with_partitioning(linen.initializers.lecun_normal(), ("model", None))
        return linen.Dense(1, kernel_init=joined)(linen.relu(linen.Dense(4 * WIDTH, kernel_init=split)(x)))[:, 0]


network = Network()


def begin(key: jax.Array) -> TrainState:
    parameters = network.init(key, jnp.zeros((1, WIDTH)))["params"]
    return TrainState.create(apply_fn=network.apply, params=parameters, tx=optax.adam(1e-2))


key = jax.random.key(3)
specs = linen.get_partition_spec(jax.eval_shape(begin, key))
shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P))
state: Any = jax.jit(begin, out_shardings=shardings)(key)
assert not state.params["Dense_0"]["kernel"].value.is_fully_replicated


@jax.jit
def train(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
    loss, gradients = jax.value_and_grad(lambda p: jnp.mean((state.apply_fn({"params": p}, x) - y) ** 2))(state.params)
    return state.apply_gradients(grads=gradients), loss


losses = []
for step in range(STEPS):
    state, loss = train(state, *batch(step))
    losses.append(float(loss))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.out = nnx.Linear(4 * WIDTH, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(nnx.relu(self.hidden(x)))[:, 0]


@nnx.jit
def make() -> tuple[Model, nnx.Optimizer]:
    model = Model(nnx.Rngs(5))
    replicated = NamedSharding(mesh, P())
    nnx.update(model, jax.lax.with_sharding_constraint(nnx.state(model), replicated))
    hidden = NamedSharding(mesh, P(None, "model"))
    model.hidden.kernel[...] = jax.lax.with_sharding_constraint(model.hidden.kernel[...], hidden)
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


@nnx.jit
def fit(model: Model, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


model, optimizer = make()
losses += [float(fit(model, optimizer, *batch(step))) for step in range(STEPS)]
print("value", json.dumps(losses), flush=True)
