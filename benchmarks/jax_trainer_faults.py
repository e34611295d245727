"""The same faults, thrown at Ray Train's JaxTrainer and at ours in turn: `python benchmarks/jax_trainer_faults.py`.

Both train the same network on the same text on two emulated hosts x two devices, keep a checkpoint every 30 steps, and
lose rank 1 at step 100: killed, frozen, asleep in Python, or with another program than rank 0's. A calm run of each
comes first; its parameters are what is right. Of JaxTrainer, the report is the first line of its output after the fault
that speaks of a failure and that no calm run has. A step is useful if it had not been made before the fault.

    --trainer-python P   an interpreter with `ray[train]`; without it one is made with uv in a temporary folder
    --only KIND          one fault
    --times N            each so many times, the two in turn; the table has medians and minima (default 1)
"""

import argparse
import itertools
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench_cluster import Bench
from fault_cases import WORKLOADS
from jax_trainer_job import job_settings
from jax_trainer_run import (
    DEVICES_PER_HOST,
    MAX_SEEN,
    NUM_HOSTS,
    REPORT_TIMEOUT_S,
    Outcome,
    run_trainer,
    without_numbers,
)
from trainer_environment import make_environment

FAULTS = ("kill", "freeze", "sleep", "other-program")
CHANGED = {"steps": "300", "steps_per_dispatch": "5", "eval_every": "300"}
SETTINGS = dict(setting.split("=") for setting in WORKLOADS["transformer"]) | CHANGED
CHECKPOINT_EVERY = 30
FAULT_STEP = 100
MAX_LINES = 8


class Ours:
    """Jobs on our cluster, which stays up, as a user's would.

    Args:
        bench: the cluster.
    """

    def __init__(self, bench: Bench):
        self.bench = bench
        self.digest = self._submit("calm")["result"]["result_digest"]

    def run(self, fault: str, number: int) -> Outcome:
        """One job with a fault at rank 1, the `number`th with this one."""
        name = f"{fault}-{number}"
        job = self._submit(name, "--inject", f"{fault} rank=1 step={FAULT_STEP}")
        events = self.bench.events(name)
        at = next(event["at"] for event in events if event["type"] == "injected")
        report = next((event for event in events if event["type"] == "attempt-failed"), None)
        if report is None:
            return Outcome(contender="ours", fault=fault, end=self._end(job))
        lines = (self.bench.job_folder(name) / "metrics.jsonl").read_text().splitlines()
        rows = [(row["at"], row["step"]) for row in map(json.loads, lines)]
        reached = max(step for when, step in rows if when <= report["at"])
        new = [when for when, step in rows if when > report["at"] and step > reached]
        return Outcome(
            contender="ours",
            fault=fault,
            seen=report["message"].splitlines()[0],
            report_s=report["at"] - at,
            new_s=new[0] - at if new else None,
            end=self._end(job),
        )

    def _submit(self, name: str, *more: str) -> dict[str, Any]:
        settings = [f"{key}={value}" for key, value in SETTINGS.items()]
        self.bench.submit("transformer", name, *more, settings=settings, checkpoint_every=CHECKPOINT_EVERY)
        return self.bench.job(name)

    def _end(self, job: dict[str, Any]) -> str:
        if job["state"] != "SUCCEEDED":
            return "refused: no result"
        return "right" if job["result"]["result_digest"] == self.digest else "WRONG"


def table(outcomes: Sequence[Outcome]) -> str:
    """One row for a fault and a contender, as in docs/reliability.md; what is seen first is that of its first run."""
    lines = [
        "| fault at rank 1 | with | times | seconds to the report: median, minimum | to the next useful step | end "
        "| what the user sees first |",
        "|---|---|---|---|---|---|---|",
    ]
    for fault, contender in dict.fromkeys((outcome.fault, outcome.contender) for outcome in outcomes):
        mine = [outcome for outcome in outcomes if (outcome.fault, outcome.contender) == (fault, contender)]
        ends = ", ".join(dict.fromkeys(outcome.end for outcome in mine))
        seen = mine[0].seen.replace("|", "/") or "nothing"
        report, new = (_seconds([getattr(run, which) for run in mine]) for which in ("report_s", "new_s"))
        lines.append(f"| {fault} | {contender} | {len(mine)} | {report} | {new} | {ends} | {seen} |")
    return "\n".join(lines)


def _seconds(values: Sequence[float | None]) -> str:
    """Median and minimum of those there are, and how many there are not."""
    known = [value for value in values if value is not None]
    lacking = len(values) - len(known)
    if not known:
        return "none"
    return f"{statistics.median(known):.1f}, {min(known):.1f}" + (f" ({lacking} without)" if lacking else "")


def compare(folder: Path, python: str, faults: Iterable[str], times: int) -> list[Outcome]:
    """A calm run of each, then each fault with JaxTrainer and with ours, `times` times in turn; one at a time.

    Raises:
        RuntimeError: JaxTrainer's calm run did not end well.
    """
    job = {"settings": SETTINGS, "checkpoint_every": CHECKPOINT_EVERY, "fault": None, "fault_step": FAULT_STEP}
    bench, outcomes = Bench(folder), []
    bench.up()
    try:
        ours = Ours(bench)
        calm = run_trainer(folder, python, job)
        if calm.exit_code != 0 or len(set(calm.digests)) != 1:
            printed = "\n".join(text for _, text in calm.lines[-30:])
            raise RuntimeError(f"JaxTrainer without a fault: exit code {calm.exit_code}, {calm.digests}\n{printed}")
        usual = {without_numbers(text) for _, text in calm.reports()}
        for fault, number in itertools.product(faults, range(times)):
            theirs = run_trainer(folder, python, {**job, "fault": fault}, usual)
            outcomes += [theirs.outcome(fault, calm.digests, usual), ours.run(fault, number)]
            for outcome in outcomes[-2:]:
                print(outcome, flush=True)
            print(*(f"    {when - (theirs.fault_at or 0):6.1f} s  {text[:MAX_SEEN]}"
                    for when, text in theirs.reports(usual)[:MAX_LINES]), sep="\n", flush=True)  # fmt: skip
    finally:
        bench.down()
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer-python")
    parser.add_argument("--only", choices=FAULTS)
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`: nothing is left running
    with tempfile.TemporaryDirectory(prefix="slj-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        python = options.trainer_python or make_environment(folder / "trainer")
        print(json.dumps(job_settings(NUM_HOSTS, DEVICES_PER_HOST, "FOLDER"), indent=1), flush=True)
        outcomes = compare(folder, python, [options.only] if options.only else FAULTS, options.times)
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; JaxTrainer is "
          f"given {REPORT_TIMEOUT_S:g} s for a report\n\n{table(outcomes)}")  # fmt: skip


if __name__ == "__main__":
    main()
