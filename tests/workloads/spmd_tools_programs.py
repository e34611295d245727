"""Runs on ranks: barriers, memory reports, pictures of arrays."""

import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed

from workloads import spmd
from workloads.agreement import programs
from workloads.agreement.user_launches import unwatch_launches, watch_launches
from workloads.context import Context


def barriers(context: Context) -> dict[str, Any]:
    """The last rank stays away from one barrier, comes to it late, and stays away from another for good."""
    os.environ["SPMD_LAUNCH_HOST"] = context.host
    late = context.rank == context.num_ranks - 1
    messages = []
    context.exchange.all_gather("start", None)  # processes do not start together on a busy machine
    try:
        if not late:
            spmd.barrier("first", timeout_s=1.5)
    except TimeoutError as error:
        messages.append(str(error))
    context.exchange.all_gather("the others have waited", None)
    start = time.monotonic()
    if late:
        spmd.barrier("first", timeout_s=5.0)
    waited_s = time.monotonic() - start
    for _ in range(20):
        spmd.barrier("again")
    try:
        if not late:
            spmd.barrier("never", timeout_s=1.5)
    except TimeoutError as error:
        messages.append(str(error))
    for number in range(20):
        spmd.barrier(f"step {number}")
    left = [key for key, _ in distributed.global_state.client.key_value_dir_get("spmd-launch/spmd")]
    spmd.barrier("end")
    return {
        "messages": messages,
        "waited_s": waited_s,
        "left": [key for key in left if "again" in key or "step" in key],
    }


def _make_params(mesh: jax.sharding.Mesh) -> dict[str, jax.Array]:
    return spmd.shard({"w": np.ones((1024, 512), np.float32)}, mesh, jax.P("i"))


def memory(context: Context) -> dict[str, Any]:
    """Two MiB spread over all devices, then eight more on the first."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    params = _make_params(mesh)
    even = spmd.memory_report()
    forgotten = jnp.ones((1024, 2048))
    step = jax.jit(lambda params: (params["w"] * 2).sum(axis=1)).lower(params).compile()
    uneven = spmd.memory_report(step=step)
    refused = ""
    try:
        spmd.memory_report(step=jax.jit(lambda x: x))  # type: ignore[arg-type]
    except TypeError as error:
        refused = str(error)
    (source,) = (source for source in even.by_source if "_make_params" in source)
    return {
        "bytes": sorted(even.by_source[source].values()),
        "source": source.rpartition("/")[2],
        "largest": next(iter(uneven.by_source)).rpartition("/")[2],
        "devices": sorted(uneven.devices.values()),
        "warnings": [list(even.warnings), list(uneven.warnings)],
        "program": [uneven.programs["step"].arguments, uneven.programs["step"].outputs],
        "text": str(uneven),
        "graph": [line.rpartition("/")[2] for line in uneven.call_graph().splitlines()],
        "host": 2**20 < uneven.process_bytes < uneven.total_bytes > uneven.available_bytes,
        "refused": refused,
        "held": forgotten.nbytes,
    }


def under_agreement(context: Context) -> dict[str, Any]:
    """As in a rank of the launcher: what all compile is compared, what all launch is recorded and compared."""
    barrier = programs.install(context.exchange.apart("programs"), host=context.host, emit=context.emit)
    assert barrier is not None
    assert watch_launches(context.launches)
    mesh = jax.make_mesh((jax.device_count(),), ("i",))
    x = spmd.shard(np.arange(80, dtype=np.float32).reshape(8, 10), mesh, jax.P("i"))

    def total(x: jax.Array) -> jax.Array:
        jax.debug.print("here are {rows} rows", rows=x.shape[0])
        return jax.lax.psum(x.sum(), "i")

    value = float(spmd.spmd_map(total, mesh, "i", ("shard",), out="replicated")(x))
    first = spmd.gather(x, to="rank0")
    everywhere = spmd.gather({"x": x, "rank": context.rank})
    key = spmd.broadcast(jax.random.key(context.rank), root=1)
    verdict = spmd.assert_replicas_equal(spmd.shard(np.ones(3), mesh, jax.P()))
    context.agree("the end")
    unwatch_launches()
    programs.uninstall()
    return {
        "total": value,
        "first": None if first is None else float(first.sum()),
        "ranks": everywhere["rank"].tolist(),
        "key": jax.random.key_data(key).tolist(),
        "status": verdict.status,
        "launches": context.launches.snapshot().count,
        "programs": barrier.count,
    }


def pictures(context: Context) -> dict[str, str]:
    """One array cut over hosts and inside them, one copied, one that lies here alone."""
    grid = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("d", "m"))
    return {
        "cut": spmd.visualize(spmd.shard(np.ones((4, 8), np.float32), grid, jax.P("m", "d"))),
        "rows": spmd.visualize(spmd.shard(np.ones((4, 8), np.float32), grid, jax.P("d"))),
        "copied": spmd.visualize(spmd.shard(jax.random.key(0), grid, jax.P())),
        "alone": spmd.visualize(jnp.ones(3)),
    }
