"""Milliseconds of one call into processes that are there already: `python benchmarks/dispatch.py`.

From the call in the client to the first sum over the devices of all hosts being done in it, and to its answer being
back; the second call and later ones, whose programs are compiled. Interleaved: each round makes some calls of each
contender, one contender after another, while the others' processes are idle.

- gang: `gang.run_each(function, handle)` of `launcher.connect`; function and handle travel with each call
- actors, method: Ray actors, one a host, that have called `jax.distributed.initialize` and hold program and array; what
  one would write by hand, and the least that Ray can do: nothing but the name of a method travels
- actors, function: the same actors, which are handed the function with each call; it is another object each time, so
  that JAX traces and compiles it each time
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from children import Child
from jax_trainer import RayCluster
from ours import Installation, OurCluster
from report import Samples, Target, add, median, table

PROGRAM = str(Path(__file__).resolve().parent / "dispatch_calls.py")
TIMEOUT_S = 300.0
NUM_HOSTS, DEVICES_PER_HOST = 2, 2
GANG, METHOD, FUNCTION = "gang", "actors, method", "actors, function"


class Caller:
    """A client in a process of its own, which makes calls when it is told to.

    Args:
        kind: see `dispatch_calls`.
        arguments: of it.
        folder: where it runs.
        environment: variables of it.
    """

    def __init__(self, kind: str, arguments: list[str], folder: Path, environment: dict[str, str]):
        self.child = Child([PROGRAM, kind, *arguments], folder, environment)

    def __enter__(self) -> "Caller":
        self.first = self.child.answer(TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.child.end()

    def calls(self, how: str, number: int) -> list[dict[str, float]]:
        """Seconds of so many calls: `psum` to the sum being done, `answer` to the answer being here."""
        assert self.child.process.stdin is not None
        self.child.process.stdin.write(f"{how} {number}\n".encode())
        self.child.process.stdin.flush()
        answer: list[dict[str, float]] = self.child.answer(TIMEOUT_S)["calls"]
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=10, help="of each contender in a round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `with`: nothing is left running
    settings = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "rounds": options.rounds,
        "calls": options.calls,
        "hosts x devices": f"{NUM_HOSTS} x {DEVICES_PER_HOST}",
    }
    print(json.dumps(settings, indent=1), flush=True)
    psum: Samples = {}
    answer: Samples = {}
    first: Samples = {}
    with tempfile.TemporaryDirectory(prefix="spl-bench-", ignore_cleanup_errors=True) as folder, \
            contextlib.ExitStack() as stack:  # fmt: skip
        callers = _callers(Path(folder), stack)
        for name, caller, _ in callers[:2]:  # the third is the second one's process
            add(first, name, 1000 * caller.first["answer"])
        for _ in range(options.rounds):
            for name, caller, how in callers:
                for call in caller.calls(how, options.calls):
                    add(psum, name, 1000 * call["psum"])
                    add(answer, name, 1000 * call["answer"])
    target = Target("second dispatch of a gang to its first psum", median(psum, GANG), 50.0, " ms")
    print(table("the first call, compilation and all, to its answer", first, "ms"))
    print(table("later calls, to the sum over all hosts", psum, "ms"))
    print(table("later calls, to the answer", answer, "ms"), target, sep="\n")
    if options.json:
        samples: dict[str, Any] = {"first": first, "psum": psum, "answer": answer}
        options.json.write_text(json.dumps({"settings": settings, "samples": samples}, indent=1) + "\n")


def _callers(folder: Path, stack: contextlib.ExitStack) -> list[tuple[str, Caller, str]]:
    """Who calls, by name, and how it is told to."""
    installation = Installation(folder)
    ours = stack.enter_context(OurCluster(installation, NUM_HOSTS, DEVICES_PER_HOST))
    ours.wait_until_warm()
    gang = stack.enter_context(Caller("gang", [ours.name], folder, installation.environment))
    ray = stack.enter_context(RayCluster(NUM_HOSTS, DEVICES_PER_HOST, folder))
    arguments = [ray.address, str(NUM_HOSTS), str(DEVICES_PER_HOST)]
    actors = stack.enter_context(Caller("actors", arguments, folder, ray.environment))
    return [(GANG, gang, "call"), (METHOD, actors, "method"), (FUNCTION, actors, "function")]


if __name__ == "__main__":
    main()
