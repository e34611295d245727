"""After JAX's page on distributed data loading (docs.jax.dev/en/latest/501/data-loading.html): each process its own."""

import json
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()

BATCH, FEATURES, STEPS = 16, 6, 5


def examples(shard: int, num_shards: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The part of each global batch that one process loads: x[BATCH / num_shards, FEATURES] and y."""
    size = BATCH // num_shards
    for step in range(STEPS):
        x = np.sin(np.arange(BATCH * FEATURES, dtype=np.float32) + step).reshape(BATCH, FEATURES)
        mine = x[shard * size : (shard + 1) * size]
        yield mine, mine @ np.arange(FEATURES, dtype=np.float32)


@jax.jit
def step(weights: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
    return weights - 0.3 * gradient, loss


# data parallelism: a global batch is what all processes have loaded
data_mesh = Mesh(np.array(jax.devices()), "batch")
weights = jax.device_put(np.zeros(FEATURES, np.float32), NamedSharding(data_mesh, P()))
for local in examples(jax.process_index(), jax.process_count()):
    x, y = (jax.make_array_from_process_local_data(NamedSharding(data_mesh, P("batch")), part) for part in local)
    assert x.shape == (BATCH, FEATURES)
    weights, loss = step(weights, x, y)

# data and model parallelism: rows are replicas, and a callback gives each device what its shard covers
mesh = jax.make_mesh((jax.device_count() // 2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
table = np.cos(np.arange(BATCH * FEATURES, dtype=np.float32)).reshape(BATCH, FEATURES)
both = jax.make_array_from_callback(table.shape, NamedSharding(mesh, P("data", "model")), lambda index: table[index])


# loaded in whatever way is convenient, and sharded as it is needed inside the computation
@jax.jit
def resharded(columns: jax.Array) -> jax.Array:
    rows = jax.lax.with_sharding_constraint(columns, NamedSharding(mesh, P("data", None)))
    return jnp.sum(jax.nn.softmax(rows, axis=-1) * rows)


columns = jax.make_array_from_callback(table.shape, NamedSharding(mesh, P(None, "model")), lambda index: table[index])
value = [np.asarray(weights).tolist(), float(loss), float(jnp.sum(both**2)), float(resharded(columns))]
print("value", json.dumps(value), flush=True)
