"""`bandwidth-check` on every rank."""

import time
from collections.abc import Sequence

import jax
import numpy as np

from workloads.bandwidth_check.config import Config
from workloads.bandwidth_check.measure import Group
from workloads.bandwidth_check.plan import ALL_SHARE, LOCAL_SHARE, partner, rounds, sizes
from workloads.bandwidth_check.report import Found, describe, headline
from workloads.context import Context
from workloads.exchange import Exchange
from workloads.psum_check.run import AXIS, first_psum
from workloads.result import Result, digest_arrays


def run(config: Config, context: Context, resume: bool = False) -> Result:
    """Measures inside each host, over all hosts, and over each pair of them; tells which hosts and links are slow.

    Pairs that share no host are measured at the same time. It keeps no checkpoint: a resumed run starts anew.

    Raises:
        RuntimeError: a collective gave a wrong value; on the rank that has it, with the host that it came from.
    """
    total, _ = first_psum(context.mesh({AXIS: jax.device_count()}), context)
    # A pair may have to wait for another that takes all its time.
    everyone = context.exchange.apart("bandwidth", timeout_s=context.exchange.timeout_s + config.seconds)
    hosts = [str(name) for name in everyone.all_gather("hosts", context.host)]
    mine = _measure(config, context, everyone, hosts)
    led = [found.to_json() for found in mine if found.ranks[0] == context.rank]
    everything = [Found.from_json(found) for post in everyone.all_gather("found", led) for found in post]
    return Result(
        metrics={"num_devices": jax.device_count(), **headline(everything, num_hosts=len(hosts))},
        diagnostics=describe(everything, hosts),
        result_digest=digest_arrays({"psum": np.asarray(total)}),
    )


def _measure(config: Config, context: Context, everyone: Exchange, hosts: Sequence[str]) -> list[Found]:
    """What this rank took part in. Every rank passes the same phases, so that the watchdog can tell who is behind."""
    began_s = time.monotonic()
    num_hosts = len(hosts)
    plan = rounds(num_hosts) if num_hosts > 2 else []  # two hosts are a pair, and all
    pairs_share = 1 - LOCAL_SHARE - ALL_SHARE if plan else 0.0
    parts: list[tuple[str, tuple[int, ...], float]] = [("inside", (context.rank,), LOCAL_SHARE)]
    if num_hosts > 1:
        parts.append(("all", tuple(range(num_hosts)), 1 - LOCAL_SHARE - pairs_share))
    parts += [
        (f"pairs {number} of {len(plan)}", partner(pairs, context.rank) or (), pairs_share / len(plan))
        for number, pairs in enumerate(plan, start=1)
    ]
    found = []
    for step, (name, ranks, share) in enumerate(parts, start=1):
        with context.phase(name):
            if len([device for device in jax.devices() if device.process_index in ranks]) > 1:
                exchange = everyone.apart(f"{name}/{ranks}", ranks=ranks)
                is_late = len(ranks) == 2 < num_hosts and time.monotonic() - began_s > config.seconds
                to_measure = [] if any(exchange.all_gather("late", is_late)) else sizes(config.max_bytes)
                measured, left_out = Group(ranks, exchange, hosts).measure_all(to_measure, config.seconds * share)
                found.append(Found(ranks=ranks, measurements=measured, left_out=left_out))
        context.report(step, len(parts))
    return found
