"""Runs one function on several real JAX processes, without Ray: what the layout tests of the workloads stand on."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

_MAIN = """
import importlib, json, sys
target, rank, num_ranks, port, folder, kwargs, x64 = json.loads(sys.argv[1])
import jax
jax.config.update("jax_enable_x64", x64)
if num_ranks > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", num_ranks, rank, local_device_ids=None)
from pathlib import Path
from workloads.context import Context
from workloads.exchange import Exchange
events = []
output = Path(folder) / f"rank-{rank}"
output.mkdir()
context = Context(rank=rank, num_ranks=num_ranks, host=f"host-{rank}", seed=kwargs.pop("seed", 0), output=output,
                  storage=folder + "/storage", exchange=Exchange(rank, num_ranks, 60.0), emit=events.append,
                  **kwargs.pop("context", {}))
module, _, name = target.partition(":")
value = getattr(importlib.import_module(module), name)(context, **kwargs)
(Path(folder) / f"value-{rank}.json").write_text(json.dumps({"value": value, "events": events}))
if num_ranks > 1:
    jax.distributed.shutdown()
"""


def run_ranks(
    target: str,
    *,
    num_hosts: int,
    devices_per_host: int,
    timeout_s: float = 240.0,
    x64: bool = False,
    folder: Path | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Calls `module:function(context, **kwargs)` on every rank and returns what each returned (JSON), in rank order.

    Special keyword arguments: `seed=`, and `context={...}` for further fields of the context. `target` may live in
    `tests/` (as `tests.workloads.some_programs:function`). The `folder` (by default a fresh temporary one, removed)
    holds `rank-K/` (each rank's output) and `storage/`.

    Raises:
        AssertionError: with the standard error of every rank, if one fails or time runs out.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return run_ranks(target, num_hosts=num_hosts, devices_per_host=devices_per_host, timeout_s=timeout_s,
                             x64=x64, folder=Path(temporary), **kwargs)  # fmt: skip
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices_per_host}",
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "0",
    }
    processes = []
    for rank in range(num_hosts):
        argument = json.dumps([target, rank, num_hosts, port, str(folder), kwargs, x64])
        with (folder / f"stderr-{rank}").open("w") as stderr:
            processes.append(
                subprocess.Popen([sys.executable, "-c", _MAIN, argument], env=environment, stderr=stderr, stdout=stderr)
            )
    try:
        codes = [process.wait(timeout_s) for process in processes]
    except subprocess.TimeoutExpired:
        codes = [process.poll() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(code != 0 for code in codes):  # None: still running when time ran out
        texts = "\n".join(f"--- rank {rank}\n{(folder / f'stderr-{rank}').read_text()}" for rank in range(num_hosts))
        raise AssertionError(f"{target} on {num_hosts} x {devices_per_host}: exit codes {codes}\n{texts}")
    return [json.loads((folder / f"value-{rank}.json").read_text())["value"] for rank in range(num_hosts)]
