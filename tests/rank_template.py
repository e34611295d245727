"""The process that the ranks of tests are forked from: `python -m tests.rank_template DESCRIPTOR`.

It is the product's template (`launcher.rank.template`) with a task of the tests' own: a rank costs milliseconds, where
importing JAX, TFP, Flax and Orbax anew costs several seconds of a core. What ranks compile is kept for those after
them, as on a host. All of it goes with the process that holds the other end of the descriptor.
"""

import importlib
import json
import os
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

import jax

from launcher.environment import preimports
from launcher.rank.compile_cache import use_compile_cache
from launcher.rank.main import redirect_output
from launcher.rank.template import Template
from workloads.context import Context
from workloads.exchange import Exchange

LEASE_S = 24 * 60 * 60.0  # the tests' process says nothing between two ranks


def main() -> NoReturn:
    template = Template(socket.socket(fileno=int(sys.argv[1])), LEASE_S, preimports().split())
    with tempfile.TemporaryDirectory(prefix="slt-programs-") as programs:
        run_rank(template.serve(), programs)


def run_rank(descriptor: int, programs: str) -> NoReturn:
    """Runs in a fork: the one task on the descriptor, and the end of this process, past JAX's atexit handlers."""
    with socket.socket(fileno=descriptor) as channel, channel.makefile() as said:
        task = json.loads(said.readline())
    try:
        redirect_output(Path(task["log"]))
        os.environ.update(task["environment"])
        call(programs=programs, **task["call"])
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, it is told
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def call(
    target: str,
    rank: int,
    num_ranks: int,
    port: int,
    folder: str,
    x64: bool,
    keep_programs: bool,
    arguments: dict[str, Any],
    programs: str,
) -> None:
    """Calls `module:function(context, **arguments)` as this rank; see `tests.ranks.run_ranks`."""
    jax.config.update("jax_enable_x64", x64)
    use_compile_cache(f"{programs}/rank-{rank}" if keep_programs else None)
    if num_ranks > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_ranks, rank, local_device_ids=None)
    events: list[dict[str, Any]] = []
    output = Path(folder) / f"rank-{rank}"
    output.mkdir()
    context = Context(
        rank=rank, num_ranks=num_ranks, host=f"host-{rank}", seed=arguments.pop("seed", 0), output=output,
        storage=folder + "/storage", exchange=Exchange(rank, num_ranks, 200.0), emit=events.append,
        **arguments.pop("context", {}),
    )  # fmt: skip
    module, _, name = target.partition(":")
    value = getattr(importlib.import_module(module), name)(context, **arguments)
    (Path(folder) / f"value-{rank}.json").write_text(json.dumps({"value": value, "events": events}))
    if num_ranks > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main()
