"""What two tools of `workloads.spmd` cost beside their peers: `python benchmarks/toolkit.py [--rounds 9]`.

`gather` beside `multihost_utils.process_allgather(tiled=True)`, of one array over two processes;
`assert_replicas_equal` beside the algorithm of bobbin's `assert_replica_integrity`, of a tree with a copy on each
device. All ways interleaved in one run, ranks starting together; of each round the slowest rank counts.

Memory is what the kernel says: by how much the highest resident size of a process during the call (VmHWM, reset before
it) exceeds its resident size just before, when freed memory has been given back. It is told of all processes together,
and, of the worst process, as what is more than the result that it gets. JAX has no other call for who needs the array
on one host only, so both gathers stand beside the same peer.
"""

import argparse
import ctypes
import gc
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]  # this file is run as a script, and by the ranks that it starts

from report import Target, median, table  # noqa: E402

from tests.ranks import run_ranks  # noqa: E402
from workloads import spmd  # noqa: E402
from workloads.context import Context  # noqa: E402
from workloads.spmd.gathering import CHUNK_BYTES  # noqa: E402

NUM_DEVICES = 4
TIMEOUT_S = 1200.0
MB = 10**6


def measure_gather(context: Context, megabytes: int, rounds: int, chunk_mib: int) -> dict[str, Any]:
    """Seconds of each way and round on this rank, the MB by which it grew, and those of them that are the result."""
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = megabytes * MB // 4 // 1000 // mesh.size * mesh.size
    mine = np.random.default_rng(context.rank).random((rows // context.num_ranks, 1000), np.float32)
    array = jax.block_until_ready(spmd.shard(mine, mesh, jax.P("i"), host_local=True))
    chunk_bytes = chunk_mib * 2**20
    ways: dict[str, Callable[[], Any]] = {
        "gather to rank 0": lambda: spmd.gather(array, to="rank0", chunk_bytes=chunk_bytes),
        "gather to all": lambda: spmd.gather(array, to="all", chunk_bytes=chunk_bytes),
        "process_allgather": lambda: multihost_utils.process_allgather(array, tiled=True),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    grown: dict[str, list[float]] = {way: [] for way in ways}
    result: dict[str, float] = {}
    for way in [*ways] * (rounds + 1):
        before = _resident_bytes_at_rest()
        context.exchange.all_gather("start", None)
        start = time.perf_counter()
        whole = ways[way]()
        seconds[way].append(time.perf_counter() - start)
        grown[way].append((_highest_resident_bytes() - before) / MB)
        result[way] = 0.0 if whole is None else whole.nbytes / MB
        first = slice(context.rank * len(mine), context.rank * len(mine) + 1)
        assert whole is None or (whole.shape == array.shape and np.array_equal(whole[first], mine[:1]))
        del whole
    first_round = {way: values.pop(0) for way, values in seconds.items()}
    grown = {way: values[1:] for way, values in grown.items()}
    return {"seconds": seconds, "grown": grown, "result": result, "first": first_round}


def _resident_bytes_at_rest() -> int:
    """Of this process, without what it has freed; and from here on its highest is counted anew."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _highest_resident_bytes()


def _highest_resident_bytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def measure_replicas(context: Context, megabytes: int, rounds: int) -> dict[str, Any]:
    """Seconds of each way and round on this rank; every device holds a copy of a tree of ten leaves."""
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(0)
    values = {f"layer_{n}": rng.random((megabytes * MB // 40 // 1000, 1000), np.float32) for n in range(10)}
    copied = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree), out_shardings=jax.NamedSharding(mesh, jax.P()))
    tree = jax.block_until_ready(copied(spmd.shard(values, mesh, jax.P())))  # in memory of each device's own
    stacked = jax.block_until_ready(
        jax.pmap(lambda copy: copy)(jax.tree.map(lambda leaf: np.stack([leaf] * jax.local_device_count()), values))
    )
    gather_copies = jax.pmap(_all_gather, "b")
    ways: dict[str, Callable[[], object]] = {
        "assert_replicas_equal": lambda: spmd.assert_replicas_equal(tree),
        "bobbin's algorithm": lambda: assert_replica_integrity(stacked, _made_anew()),
        "the same, compiled once": lambda: assert_replica_integrity(stacked, gather_copies),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for way in [*ways] * (rounds + 1):
        context.exchange.all_gather("start", None)
        start = time.perf_counter()
        ways[way]()
        seconds[way].append(time.perf_counter() - start)
    first_round = {way: values.pop(0) for way, values in seconds.items()}
    return {"seconds": seconds, "first": first_round}


def _made_anew() -> Callable[[Any], Any]:
    return jax.pmap(lambda tree: _all_gather(tree), "b")  # noqa: PLW0108 (another function each time, as in bobbin)


def _all_gather(tree: Any) -> Any:
    return jax.lax.all_gather(tree, "b")


def assert_replica_integrity(
    tree: Any, gather_copies: Callable[[Any], Any], *, rtol: float = 1e-5, atol: float = 1e-5
) -> None:
    """The peer, written out after bobbin's `pmap_util.assert_replica_integrity`: all copies to every device, the first
    device's of them to the host, and each compared with the first within a tolerance.

    Args:
        tree: with a leading axis of local devices.
        gather_copies: `jax.pmap` of an all-gather; bobbin makes it anew in each call, and so compiles in each.
    """
    gathered = jax.tree.map(lambda copies: copies[0], gather_copies(tree))

    def compare(path: Any, copies: jax.Array) -> None:
        for replica in range(1, len(copies)):
            message = f"Inconsistency found in {replica}-th replica of {jax.tree_util.keystr(path)}"
            np.testing.assert_allclose(copies[replica], copies[0], err_msg=message, atol=atol, rtol=rtol)

    jax.tree_util.tree_map_with_path(compare, gathered)


def slowest(ranks: list[dict[str, Any]], what: str) -> dict[str, list[float]]:
    """By way, of each round the rank with the most."""
    return {
        way: [max(values) for values in zip(*(rank[what][way] for rank in ranks), strict=True)]
        for way in ranks[0][what]
    }


def gather_report(megabytes: int, rounds: int, devices_per_host: int, chunk_mib: int) -> list[Target]:
    ranks = run_ranks(
        "benchmarks.toolkit:measure_gather", num_hosts=2, devices_per_host=devices_per_host, timeout_s=TIMEOUT_S,
        keep_programs=False, megabytes=megabytes, rounds=rounds, chunk_mib=chunk_mib,
    )  # fmt: skip
    seconds = slowest(ranks, "seconds")
    together, extra = {}, {}
    for way in seconds:
        every = list(zip(*(rank["grown"][way] for rank in ranks), strict=True))
        together[way] = [sum(values) for values in every]
        results = [rank["result"][way] for rank in ranks]
        extra[way] = [max(np.subtract(values, results)) for values in every]
    layout = f"2 processes x {devices_per_host}"
    print(f"\n{megabytes} MB over {layout}, chunk_bytes {chunk_mib} MiB; first calls, with compilation: "
          + ", ".join(f"{max(rank['first'][way] for rank in ranks):.2f} s {way}" for way in seconds))  # fmt: skip
    print(table("time", seconds, "s"))
    print(table("growth at the peak, both processes together", together, "MB"))
    print(table("growth at the peak beyond the result, the worse process", extra, "MB"))
    figures = [
        ("time of gather to rank 0", seconds, "gather to rank 0", " s"),
        ("memory of gather to rank 0, both processes", together, "gather to rank 0", " MB"),
        ("time of gather to all", seconds, "gather to all", " s"),
        ("memory of gather to all beyond the result", extra, "gather to all", " MB"),
    ]
    return [
        Target(f"{layout}: {what}", median(samples, way), median(samples, "process_allgather"), unit)
        for what, samples, way, unit in figures
    ]


def replicas_report(megabytes: int, rounds: int, num_hosts: int) -> list[Target]:
    devices = NUM_DEVICES // num_hosts
    ranks = run_ranks(
        "benchmarks.toolkit:measure_replicas", num_hosts=num_hosts, devices_per_host=devices, timeout_s=TIMEOUT_S,
        keep_programs=False, megabytes=megabytes, rounds=rounds,
    )  # fmt: skip
    seconds = slowest(ranks, "seconds")
    layout = f"{num_hosts} x {devices}"
    print(f"\n{NUM_DEVICES} copies of {megabytes} MB in 10 leaves on {layout}; first calls: "
          + ", ".join(f"{max(rank['first'][way] for rank in ranks):.2f} s {way}" for way in seconds))  # fmt: skip
    print(table("time", seconds, "s"))
    ratio = median(seconds, "the same, compiled once") / median(seconds, "assert_replicas_equal")
    what = f"{layout}: assert_replicas_equal, times as fast as bobbin's algorithm compiled once"
    return [Target(what, ratio, 10.0, " times", at_least=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--gather-mb", type=int, default=200, help="of the whole array")
    parser.add_argument("--replica-mb", type=int, default=100, help="of each copy")
    parser.add_argument("--chunk-mib", type=int, default=CHUNK_BYTES // 2**20, help="chunk_bytes of gather")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"JAX {jax.__version__}, {os.cpu_count()} cores, load {load:.1f} before, {options.rounds} rounds")
    targets = []
    for devices_per_host in (1, 2):
        targets += gather_report(options.gather_mb, options.rounds, devices_per_host, options.chunk_mib)
    for num_hosts in (1, 2):
        targets += replicas_report(options.replica_mb, options.rounds, num_hosts)
    print("", *targets, sep="\n")


if __name__ == "__main__":
    main()
