"""Runs on ranks: a few steps of a program with collectives, and a cache of each rank's own."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from launcher.rank.compile_cache import use_compile_cache
from workloads.agreement import programs
from workloads.context import Context
from workloads.result import digest_arrays

HITS = "/jax/compilation_cache/cache_hits"
REQUESTS = "/jax/compilation_cache/compile_requests_use_cache"


def steps(context: Context, *, cache: str | None) -> dict[str, Any]:
    """Gradient steps of a small network, data split over all devices.

    Returns:
        The result's digest, why this JAX cannot write on all ranks, and how often the cache was asked and had it.
    """
    seen: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
    why = use_compile_cache(str(Path(cache) / f"rank-{context.rank}") if cache else None)
    programs.install(context.exchange, host=context.host, emit=context.emit)
    mesh = context.mesh({"data": jax.device_count()})
    rows = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    data = jax.make_array_from_callback(rows.shape, NamedSharding(mesh, P("data")), rows.__getitem__)
    copies = NamedSharding(mesh, P())
    start = jax.jit(lambda: jax.random.normal(context.base_key, (32, 32)) / 6, out_shardings=copies)

    def loss(weights: jax.Array, rows: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(jnp.tanh(rows @ weights) @ weights.T) ** 2)

    step = jax.jit(lambda weights, rows: weights - 0.1 * jax.grad(loss)(weights, rows), out_shardings=copies)
    weights = context.compile("start", start)[0]()
    program, _ = context.compile("step", step, weights, data)
    for _ in range(10):
        weights = jax.block_until_ready(program(weights, data))
    digest = digest_arrays({"weights": context.gather(weights)})
    return {"digest": digest, "why": why, "hits": seen.count(HITS), "requests": seen.count(REQUESTS)}
