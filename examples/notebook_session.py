"""A session as in a notebook: data stays on the devices of all hosts while you try things on it.

Bring up a cluster (`spmd-launch up examples/laptop.yaml`), then `python examples/notebook_session.py`, or run the parts
between the lines of `# %%` one after another in a notebook.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import launcher

# %% Functions: each runs on every host at once and sees the devices of all.


def make_data(num_rows: int) -> tuple[jax.Array, jax.Array]:
    """Rows of a linear model, sharded over all devices of all hosts: x (num_rows, 3), y (num_rows,)."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.NamedSharding(mesh, jax.P("data"))

    @functools.partial(jax.jit, out_shardings=rows)
    def make(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        x_key, noise_key = jax.random.split(key)
        x = jax.random.normal(x_key, (num_rows, 3))
        y = x @ jnp.array([1.0, -2.0, 0.5]) + 0.1 * jax.random.normal(noise_key, (num_rows,))
        return x, y

    return make(jax.random.key(0))


@jax.jit
def gradient_step(w: jax.Array, x: jax.Array, y: jax.Array, rate: float) -> tuple[jax.Array, jax.Array]:
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - rate * gradient, loss


def where_am_i() -> str:
    print(f"process {jax.process_index()} of {jax.process_count()}, {jax.device_count()} devices in all")
    return jax.devices()[0].platform


def fails_on_rank_1() -> None:
    if jax.process_index() == 1:
        raise ValueError("a mistake that only one host makes")


def main() -> None:
    # %% A gang: one process on each host, which stays.
    with launcher.connect() as cluster, cluster.gang() as gang:
        print(gang.name, "on", ", ".join(gang.hosts), "with", gang.run(where_am_i))

        # %% Arrays stay on the devices: what comes back is a handle, which goes into the next call.
        x, y = gang.run(make_data, 4096)
        print(x)
        w = np.zeros(3, np.float32)
        for step in range(1, 21):
            w, loss = gang.run(gradient_step, w, x, y, 0.2)
            if step % 10 == 0:
                print(f"step {step}: loss {float(loss):.4f}")
        print("w =", np.round(w.fetch(), 2))

        # %% An exception comes with the traceback of each rank, and the gang goes on.
        try:
            gang.run(fails_on_rank_1)
        except launcher.GangError as error:
            print(f"\n{error}\n")
        print("loss on all rows:", round(float(gang.run(gradient_step, w, x, y, 0.0)[1]), 4))

    # %% Jobs are objects too.
    with launcher.connect() as cluster:
        job = cluster.submit("psum-check", steps=100, size=64)
        result = job.result()
        print(f"{job.name}: {job.state}, psum {result.metrics['psum']:.0f}, digest {result.digest[:16]}")


if __name__ == "__main__":
    main()
