"""Runs on ranks: programs of a user's own, launched in another order on one rank."""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from launcher.rank.agreement import agree_before_start
from workloads.agreement import programs
from workloads.agreement.user_launches import unwatch_launches
from workloads.context import Context
from workloads.errors import DisagreementError


def swapped(context: Context, *, watched_ranks: list[int]) -> dict[str, Any]:
    """Two programs that never go through the context; the last rank launches them in swapped order.

    Args:
        watched_ranks: whose tasks say that launches are watched.
    """
    assignment = {
        "files": {}, "settings": {}, "attempt_id": "t.1.0", "workload": "psum-check",
        "watch_launches": context.rank in watched_ranks,
    }  # fmt: skip
    try:
        agree_before_start(assignment, context)
        value = np.arange(8, dtype=np.float32)
        mesh = context.mesh({"data": jax.device_count()})
        x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("data")), value.__getitem__)

        def largest(v: jax.Array) -> jax.Array:
            return v.max()

        def total(v: jax.Array) -> jax.Array:
            return v.sum()

        both = [jax.jit(largest), jax.jit(total)]
        values = [float(function(x)) for function in both]  # compiled in one order on all ranks
        astray = context.rank == context.num_ranks - 1
        for function in reversed(both) if astray else both:
            jax.block_until_ready(function(x))
        context.agree("result")
    except DisagreementError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        programs.uninstall()
        unwatch_launches()
    return {"error": "", "values": values}
