"""After JAX's guide to shard_map (docs.jax.dev/en/latest/201/shard-map.html): every collective over all processes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()

N = jax.device_count()
mesh = jax.make_mesh((N // 2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
line = jax.make_mesh((N,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


def put(x: np.ndarray, mesh: jax.sharding.Mesh, spec: P) -> jax.Array:
    return jax.device_put(np.asarray(x, np.float32), NamedSharding(mesh, spec))


def whole(x: jax.Array) -> list[float]:
    return np.asarray(multihost_utils.process_allgather(x, tiled=True)).ravel().tolist()


@jax.jit
@jax.shard_map(mesh=mesh, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))
def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Blocks of a row are multiplied where they lie, and added up over the row's devices."""
    return jax.lax.psum(a @ b, "y")


left, right = np.arange(8 * N).reshape(N, 8) / 7, np.arange(24).reshape(8, 3) / 5
product = matmul(put(left, mesh, P("x", "y")), put(right, mesh, P("y", None)))
np.testing.assert_allclose(whole(product), (left @ right).ravel(), rtol=1e-5)


@jax.jit
@jax.shard_map(mesh=line, in_specs=P("i"), out_specs=(P("i"), P("i"), P("i"), P("i"), P()))
def collectives(x: jax.Array) -> tuple[jax.Array, ...]:
    """x[N, 1] on each device: to the neighbour, the mean of all, summed and cut, transposed, and the largest."""
    shifted = jax.lax.ppermute(x, "i", [(k, (k + 1) % N) for k in range(N)])
    gathered = jax.lax.all_gather(x, "i", tiled=True)
    scattered = jax.lax.psum_scatter(x, "i", tiled=True)
    transposed = jax.lax.all_to_all(x, "i", split_axis=0, concat_axis=0, tiled=True)
    return shifted, gathered.mean(0, keepdims=True), scattered, transposed, jax.lax.pmax(jnp.max(x), "i")


results = collectives(put(np.sqrt(np.arange(N * N)).reshape(N * N, 1), line, P("i")))
gradient = jax.jit(jax.grad(lambda a, b: jnp.sum(matmul(a, b) ** 2)))(
    put(left, mesh, P("x", "y")), put(right, mesh, P("y", None))
)
value = [whole(product), *(whole(result) for result in results), whole(gradient)]
print("value", json.dumps(value), flush=True)
