"""The control plane at scale: `python benchmarks/scale.py --simulate`, and without it up to 16 emulated hosts for real.

The simulation drives the code that the supervisor runs, for up to 4,096 hosts; docs/scale.md has what both found.
"""

import argparse
import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

import scale_hosts
from scale_cases import CASES, Step

SIZES = (4, 64, 512, 4096)
HOSTS = (2, 4, 8, 16)
MIN_S = 0.2
MAX_TIMES = 1000


def cpu_of(step: Step) -> tuple[float, Any]:
    """CPU seconds of one step, the first left out, and what it returned last; other processes are not in it."""
    step()
    times, start, result = 0, time.process_time(), None
    while times < MAX_TIMES and (times == 0 or time.process_time() - start < MIN_S):
        result, times = step(), times + 1
    return (time.process_time() - start) / times, result


def simulate() -> None:
    """Prints each case's microseconds a host for each size, its milliseconds for the largest, and bytes a host."""
    print("| what, us of CPU a host | " + " | ".join(f"N = {size}" for size in SIZES) + " | ms in all | bytes a host |")
    print("|---|" + "---|" * (len(SIZES) + 2))
    for name, prepare in CASES.items():
        cells, total_s, result = [], 0.0, None
        for size in SIZES:
            with tempfile.TemporaryDirectory(prefix="slt-") as folder:
                total_s, result = cpu_of(prepare(size, Path(folder)))
            cells.append(f"{1e6 * total_s / size:.2f}")
        sent = f"{len(result) / SIZES[-1]:.1f}" if isinstance(result, bytes) else ""
        print(f"| {name} | {' | '.join(cells)} | {1e3 * total_s:.1f} | {sent} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true", help="no hosts: what is computed for many of them")
    parser.add_argument("--hosts", type=int, nargs="+", default=HOSTS, help="numbers of emulated hosts")
    chosen = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        simulate() if chosen.simulate else scale_hosts.run(chosen.hosts)


if __name__ == "__main__":
    main()
