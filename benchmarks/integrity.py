"""What a replica check costs: `python benchmarks/integrity.py [--hosts 2] [--rounds 9]`.

Four copies of 100 MB on one machine, all ways interleaved in one run; minima and medians over the rounds, of each
round the time of the slowest rank. The peer is gather-and-compare, as users write it today: every local copy of every
rank is brought to every rank with `multihost_utils.process_allgather` (tiled=False, as bytes), and compared there with
`np.array_equal`.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this file is run as a script, and by the ranks that it starts

from tests.ranks import run_ranks  # noqa: E402
from workloads.cadence import CHECKS  # noqa: E402
from workloads.context import Context  # noqa: E402
from workloads.exchange import Exchange  # noqa: E402
from workloads.integrity import ReplicaChecker  # noqa: E402

NUM_DEVICES = 4
COPY_BYTES = 100_000_000
LAYOUTS = {
    "1 leaf, float32": ("float32", [(COPY_BYTES // 4,)]),
    "50 leaves, float32": ("float32", [(1000, COPY_BYTES // 200_000)] * 50),
    "50 leaves, bfloat16": ("bfloat16", [(1000, COPY_BYTES // 100_000)] * 50),
    "50 leaves, float8_e4m3fn": ("float8_e4m3fn", [(2000, COPY_BYTES // 100_000)] * 50),
    "200 small leaves, float32": ("float32", [(64, 16 + number % 5) for number in range(200)]),
}
WAYS = ("plain read", "check", "gather and compare")
TARGET_SHARE = CHECKS.share  # of the run time; checks by cost keep to it by being as seldom as that takes
TARGET_POSTED_BYTES = 64 * 1024


class CountedExchange(Exchange):
    """Counts the bytes of JSON that this rank posts."""

    posted = 0

    def all_gather(self, topic: str, value: Any) -> list[Any]:
        self.posted += len(json.dumps(value))
        return super().all_gather(topic, value)


def plain_read(tree: list[jax.Array]) -> None:
    """Reads every byte of every local copy once."""
    for array in tree:
        for shard in array.addressable_shards:
            np.asarray(shard.data).reshape(-1).view(np.uint8).view(np.uint64).max()


def gather_and_compare(tree: list[jax.Array]) -> None:
    """The peer: brings all copies together and compares them."""
    for array in tree:
        copies = np.stack([np.asarray(shard.data).reshape(-1).view(np.uint8) for shard in array.addressable_shards])
        gathered = np.asarray(multihost_utils.process_allgather(copies)).reshape(-1, copies.shape[1])
        assert all(np.array_equal(gathered[0], other) for other in gathered[1:])


def measure(context: Context, name: str, rounds: int) -> dict[str, Any]:
    """Seconds of each way and round on this rank, with the ranks starting together; and bytes on the wire a check."""
    dtype, shapes = LAYOUTS[name]
    mesh = context.mesh({"devices": NUM_DEVICES})
    sharding = NamedSharding(mesh, PartitionSpec())
    make = jax.jit(
        lambda key, shape: jax.random.normal(key, shape, jnp.float32).astype(jnp.dtype(dtype)),
        static_argnums=1,
        out_shardings=sharding,
    )
    tree = [jax.block_until_ready(make(jax.random.key(number), shape)) for number, shape in enumerate(shapes)]
    exchange = CountedExchange(context.rank, context.num_ranks)
    checker = ReplicaChecker(exchange, context.host)
    actions: dict[str, Callable[[], object]] = {
        "plain read": lambda: plain_read(tree),
        "check": lambda: checker.check(tree, step=0),
        "gather and compare": lambda: gather_and_compare(tree),
    }
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for way in WAYS * (rounds + 1):
        exchange_before = exchange.posted
        context.exchange.all_gather("start", None)
        start = time.perf_counter()
        actions[way]()
        seconds[way].append(time.perf_counter() - start)
        if way == "check":
            posted = exchange.posted - exchange_before
    first = seconds["check"][0]
    return {"seconds": {way: values[1:] for way, values in seconds.items()}, "first_s": first, "posted": posted}


def row(name: str, num_hosts: int, rounds: int) -> tuple[str, str]:
    """One line of the table, of each round the slowest rank; and its targets against what was measured, in words."""
    ranks = run_ranks(
        "benchmarks.integrity:measure",
        num_hosts=num_hosts,
        devices_per_host=NUM_DEVICES // num_hosts,
        keep_programs=False,
        timeout_s=900.0,
        name=name,
        rounds=rounds,
    )
    cells, median_s = [], {}
    for way in WAYS:
        slowest = [max(values) for values in zip(*(rank["seconds"][way] for rank in ranks), strict=True)]
        median_s[way] = statistics.median(slowest)
        cells.append(f"{1000 * min(slowest):7.1f} / {1000 * median_s[way]:7.1f}")
    first = max(rank["first_s"] for rank in ranks)
    posted = max(rank["posted"] for rank in ranks)
    where = f"{num_hosts} x {NUM_DEVICES // num_hosts}"
    line = f"| {where} | {name:26} | {' | '.join(cells)} | {posted:6} | {first:5.2f} |"
    return line, f"{where}, {name}: {against_targets(median_s['check'], median_s['gather and compare'], posted)}"


def against_targets(check_s: float, peer_s: float, posted: int) -> str:
    """The targets of a check against what was measured, in words.

    Args:
        check_s: median seconds of a check.
        peer_s: and of gathering and comparing.
        posted: bytes that a host posts for a check.
    """
    is_small = _met(posted <= TARGET_POSTED_BYTES)
    return (
        f"a host posts {posted:,} bytes, target at most {TARGET_POSTED_BYTES:,}: {is_small}; "
        f"a check takes {check_s:.3f} s, target at most {100 * TARGET_SHARE:g} % of the run time: met where it is made "
        f"every {check_s / TARGET_SHARE:.1f} s or less often; "
        f"target faster than gathering and comparing ({peer_s:.3f} s): {_met(check_s < peer_s)}"
    )


def _met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="*", default=[1, 2], choices=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    print(f"JAX {jax.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {NUM_DEVICES} copies")
    print(f"of {COPY_BYTES // 10**6} MB but for the small leaves; ms, minimum / median of {arguments.rounds} rounds")
    print(f"| hosts x devices | leaves | {' | '.join(WAYS)} | bytes posted by a host | first check, s |")
    print("|---" * (4 + len(WAYS)) + "|")
    verdicts = []
    for num_hosts in arguments.hosts:
        for name in LAYOUTS:
            line, verdict = row(name, num_hosts, arguments.rounds)
            print(line, flush=True)
            verdicts.append(verdict)
    print("\nTargets against what was measured (medians):")
    print("\n".join(f"- {verdict}" for verdict in verdicts))


if __name__ == "__main__":
    main()
