"""Runs on ranks: one attempt of a deterministic computation with two copies of its state, one of them maybe damaged."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from workloads.context import Context, Replay
from workloads.errors import ReplicaDivergenceError
from workloads.faults import flip_bit

TOTAL = 12
BAD_DEVICE = 3  # the second one of the second host


def attempt(context: Context, *, flip_at: int = 0, replay: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Makes the steps, with data-parallel sums over the hosts, until the end or a divergence; returns its events.

    Args:
        flip_at: step after which a bit of one copy flips; 0: never.
        replay: as in the task of a rank.
    """
    events: list[dict[str, Any]] = []
    asked = Replay(step=replay["step"], blocks=tuple(replay["blocks"])) if replay else None
    context = dataclasses.replace(context, emit=events.append, replay=asked)
    mesh = context.mesh({"a": 2, "b": 2})

    def body(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.lax.pmean(jnp.tanh(w * x[0]), "a")

    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P("b"), P("a", "b")), out_specs=P("b")))
    value = np.linspace(-1, 1, 8, dtype=np.float32)
    w = jax.make_array_from_callback((8,), NamedSharding(mesh, P("b")), value.__getitem__)
    data = np.stack([value + 2, value - 3])
    x = jax.make_array_from_callback((2, 8), NamedSharding(mesh, P("a", "b")), data.__getitem__)
    for number in range(1, TOTAL + 1):
        w = jax.block_until_ready(step(w, x))
        if number == flip_at:
            w = flip_bit(w, BAD_DEVICE, 2, 20)
        if context.check_due(number, TOTAL):
            try:
                context.assert_replicas_equal({"other": number}, step=number)  # has none of the blocks
                context.assert_replicas_equal({"w": w, "number": number}, step=number)
            except ReplicaDivergenceError as error:
                events.append({"type": "attempt-failed", "cause": error.cause, "suspects": error.suspects})
                break
    return [event for event in events if event["type"] != "phase"]
