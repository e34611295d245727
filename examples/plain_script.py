"""A script that knows nothing of any launcher: on one machine, or on every host by `spmd-launch run -- python ...`."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=4096)
    options = parser.parse_args()
    jax.distributed.initialize()

    mesh = Mesh(np.array(jax.devices()), ("data",))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.rows, 8)).astype(np.float32)
    weights = np.arange(8, dtype=np.float32)
    y = x @ weights + rng.normal(size=options.rows, scale=0.1).astype(np.float32)
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    x_shards, y_shards = (jax.make_array_from_callback(a.shape, sharding, lambda i, a=a: a[i]) for a in (x, y))

    @jax.jit
    def step(w: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - 0.1 * gradient, loss

    w = jax.device_put(np.zeros(8, np.float32), NamedSharding(mesh, PartitionSpec()))
    for number in range(options.steps):
        w, loss = step(w, x_shards, y_shards)
        if jax.process_index() == 0 and number % 10 == 0:
            print(f"step {number}: loss {float(loss):.4f}", flush=True)
    if jax.process_index() == 0:
        print(f"{jax.process_count()} processes, {jax.device_count()} devices: weights {np.round(np.asarray(w), 2)}")


if __name__ == "__main__":
    main()
