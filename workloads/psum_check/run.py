"""`psum-check` on every rank."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from workloads.context import Context
from workloads.psum_check.config import Config
from workloads.result import Result, digest_arrays

AXIS = "data"


def run(config: Config, context: Context, resume: bool = False) -> Result:
    """Sums 0, 1, 2... over all devices of all hosts, checks the sum, and times steps if asked to.

    It keeps no checkpoint: a resumed run starts anew.

    Raises:
        RuntimeError: the devices do not add up.
    """
    mesh = context.mesh({AXIS: jax.device_count()})
    total, compile_s = first_psum(mesh, context)
    first_psum_unix_s = time.time()
    expected = mesh.size * (mesh.size - 1) // 2
    if total != expected:
        raise RuntimeError(f"psum over {mesh.size} devices gave {total}, expected {expected}")
    run_s, last = timed_steps(config, context, mesh)
    context.assert_replicas_equal({"last": last}, step=config.steps)
    metrics = {
        "num_devices": mesh.size,
        "psum": total,
        "first_psum_unix_s": first_psum_unix_s,
        "compile_s": compile_s,
        "run_s": run_s,
        "steps_per_s": config.steps / run_s if config.steps else 0.0,
    }
    digest = digest_arrays({"psum": np.asarray(total), "last": context.gather(last)})
    return Result(metrics=metrics, diagnostics={}, result_digest=digest)


def first_psum(mesh: Mesh, context: Context) -> tuple[int, float]:
    """The sum of every device's index, over all devices; and the seconds of its compilation."""
    summed = jax.jit(
        jax.shard_map(
            lambda: jax.lax.psum(jax.lax.axis_index(AXIS), AXIS), mesh=mesh, in_specs=(), out_specs=P(), check_vma=True
        )
    )
    program, compile_s = context.compile("psum", summed)
    return int(program().addressable_shards[0].data), compile_s


def timed_steps(config: Config, context: Context, mesh: Mesh) -> tuple[float, jax.Array]:
    """Runs the data-parallel steps; returns their seconds and the last average (size, size), replicated."""

    def body(local: Any, carried: Any) -> Any:
        product = jnp.tanh(local[0] @ carried)
        return jax.lax.pmean(product, AXIS)

    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P(AXIS), P()), out_specs=P(), check_vma=True))
    size = config.size
    shape = (mesh.size, size, size)
    key = context.base_key
    make = jax.jit(lambda: jax.random.normal(key, shape) / size**0.5, out_shardings=NamedSharding(mesh, P(AXIS)))
    identity = jax.jit(lambda: jnp.eye(size), out_shardings=NamedSharding(mesh, P()))
    carried = context.compile("identity", identity)[0]()
    if not config.steps:
        return 0.0, carried
    local = context.compile("matrices", make)[0]()
    program, _ = context.compile("step", step, local, carried)
    carried = jax.block_until_ready(program(local, carried))
    start = time.perf_counter()
    for index in range(config.steps):
        # One step in flight: XLA:CPU runs a program on threads that a collective blocks, and dozens of steps launched
        # ahead have stopped it for ever (seen with 2 hosts x 2 devices on two cores).
        carried = jax.block_until_ready(program(local, carried))
        if (index + 1) % config.report_every == 0:
            context.report(index + 1, config.steps)
            carried = context.inject(index + 1, carried)
    return time.perf_counter() - start, carried
