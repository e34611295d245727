"""Bare processes started by hand, as in JAX's own documentation: one a host, no launcher, a port agreed beforehand."""

import json
import socket
from pathlib import Path
from typing import Any

from children import ROOT, Child

TIMEOUT_S = 180.0
REPORT_EVERY = 20  # steps

# argv: rank, number of ranks, port, folder, steps, size. Rank 0 alone answers.
PROGRAM = """
import json, sys, time
from pathlib import Path
import jax
rank, num_ranks, port, folder, steps, size = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5], *map(int, sys.argv[5:])
call = time.time()
jax.distributed.initialize(f"127.0.0.1:{port}", num_ranks, rank)
from jax.sharding import PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
psum = jax.shard_map(lambda: jax.lax.psum(jax.lax.axis_index("data"), "data"), mesh=mesh, in_specs=(), out_specs=P())
total = int(jax.jit(psum)().addressable_shards[0].data)
first_psum = time.time()
assert total == mesh.size * (mesh.size - 1) // 2, total
answer = {"call": call, "first_psum": first_psum, "num_devices": mesh.size}
if steps:
    from workloads.context import Context
    from workloads.exchange import Exchange
    from workloads.psum_check.config import Config
    from workloads.psum_check.run import timed_steps
    reports = []
    def emit(event):
        if event["type"] == "report":
            reports.append((event["step"], time.monotonic()))
    context = Context(rank=rank, num_ranks=num_ranks, host="", seed=0, output=Path(folder), storage=folder,
                      exchange=Exchange(rank, num_ranks), emit=emit)
    seconds, _ = timed_steps(Config(steps=steps, size=size, report_every=REPORT_EVERY), context, mesh)
    answer |= {"steps_per_s": steps / seconds, "reports": reports}
if rank == 0:
    print(json.dumps(answer), flush=True)
jax.distributed.shutdown()
"""


def run(num_hosts: int, devices_per_host: int, folder: Path, *, steps: int = 0, size: int = 1) -> dict[str, Any]:
    """Starts the processes, waits for all of them, and returns rank 0's answer.

    Args:
        num_hosts: processes.
        devices_per_host: emulated devices of each.
        folder: a temporary one.
        steps: data-parallel steps to time after the first psum.
        size: of a step, see `workloads.psum_check.config`.

    Returns:
        `prompt` (before the first process was made), `call` (of `jax.distributed.initialize` on rank 0) and
        `first_psum` (on rank 0) in seconds since the epoch; `steps_per_s` and `reports` (pairs of a step and when it
        was reported, in seconds of a monotonic clock).
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices_per_host}",
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "0",
    }
    program = f"REPORT_EVERY = {REPORT_EVERY}\n{PROGRAM}"
    ranks: list[Child] = []
    try:
        for rank in range(num_hosts):
            arguments = [rank, num_hosts, port, folder, steps, size]
            ranks.append(Child(["-c", program, *map(str, arguments)], folder, environment))
        answer = ranks[0].answer(TIMEOUT_S)
        for child in ranks:
            child.wait(TIMEOUT_S)
    finally:
        for child in ranks:
            child.process.kill()
            child.end()
    expected = num_hosts * devices_per_host
    if answer["num_devices"] != expected:
        raise RuntimeError(f"bare processes found {json.dumps(answer)}, expected {expected} devices")
    return answer | {"prompt": ranks[0].prompt}
