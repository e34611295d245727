"""Injects faults into running jobs and holds how they end against what is promised: `python benchmarks/faults.py`.

Every run is a job of its own on a local cluster of two hosts x two devices, submitted as a user does. It passes if it
ended as specified (with the calm run's digest where it must), if what happened was named, within its bound, and if no
process of it is left. Nothing is retried; a failure is a row of the table and exit code 1.

    --times N      each fault on each workload so many times, at seeded steps (default 20: hours)
    --sample N     every fault once and a seeded sample, N runs in all (minutes)
    --only KIND    one kind of fault
    --seed N       of steps and places (default 7): another one hits elsewhere
    --slack X      bounds of X times the promised seconds, for a machine that others use too (default 1)
    --part K/N     only the Kth of N parts of the plan (from 1): parts can run side by side, or on different days
    --json FILE    every run, too, written after each
    --tell FILES   runs nothing; prints the table of such files
"""

import argparse
import dataclasses
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench_cluster import Bench
from fault_cases import SEED, Injection, plan, sample


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one run ended.

    Attributes:
        problems: what is not as specified; empty if all is well.
        harmless: a flipped bit was computed over before anybody compared: nothing to report, the calm run's bits.
        report_s: from the fault to the report.
        recovery_s: from the report to the next useful step, if there was a further attempt.
    """

    kind: str
    workload: str
    fault: str
    problems: tuple[str, ...]
    harmless: bool = False
    report_s: float | None = None
    recovery_s: float | None = None


def run(bench: Bench, injection: Injection, name: str, slack: float) -> Outcome:
    """Injects one fault and looks at everything that was promised."""
    case = injection.case
    out = bench.submit(injection.workload, name, "--inject", injection.fault)
    if case.ends == "resumed-by-hand":
        bench.up()
        out += bench.command("submit", "--resume", name, check=False)
    job, events = bench.job(name), bench.events(name)
    text = out + job["message"]
    told = [event for event in events if event["type"] == "attempt-failed"]
    injected = [event["at"] for event in events if event["type"] == "injected"]
    recovered = [event["seconds"] for event in events if event["type"] == "recovered"]
    report_s = told[0]["at"] - injected[0] if told and injected else None
    wanted = "FAILED" if case.ends == "refused" else "SUCCEEDED"
    attempts = {"recovers": 2, "goes-on": 1, "refused": 1, "resumed-by-hand": 2}[case.ends]
    problems: list[str] = []
    right = job["state"] == "SUCCEEDED" and job["result"]["result_digest"] == bench.calm[injection.workload]
    harmless = case.kind == "flip-bit" and right and not told and bool(injected)
    proof_enough = ("recovers", "resumed-by-hand")  # a further attempt: what kills all may kill the word of it, too
    if not injected and case.ends not in proof_enough and case.kind != "other-env":
        problems.append("the fault did not happen")
    if job["state"] != wanted:
        problems.append(f"{job['state']}, not {wanted}: {job['message'].splitlines()[:1]}, {out.splitlines()[-1:]}")
    if wanted == "SUCCEEDED" and job["state"] == wanted:
        if not right:
            problems.append("another result than the calm run's: a silent error")
        if job["attempt"] != attempts and not harmless:
            why = [event["message"].splitlines()[0] for event in told]
            problems.append(f"{job['attempt']} attempts, not {attempts}: {why}")
    if case.words not in text and not harmless:
        problems.append(f"the report lacks {case.words!r}: {[event['message'] for event in told][:1]}")
    if case.event and not any(event["type"] == case.event for event in events):
        problems.append(f"no event {case.event!r}")
    bound_s = case.report_s * slack if case.report_s is not None else None
    if report_s is not None and bound_s is not None and report_s > bound_s:
        problems.append(f"reported after {report_s:.1f} s, not {bound_s:g}")
    left = bench.ranks_left(job)
    if left:
        problems.append(f"ranks left: {left}")
    return Outcome(
        kind=case.kind,
        workload=injection.workload,
        fault=injection.fault,
        problems=tuple(problems),
        harmless=harmless,
        report_s=report_s,
        recovery_s=recovered[0] if recovered else None,
    )


def run_to_an_end(bench: Bench, injection: Injection, name: str, slack: float) -> Outcome:
    """As `run`; a job that does not end is an outcome too."""
    try:
        return run(bench, injection, name, slack)
    except (subprocess.TimeoutExpired, RuntimeError) as error:
        problem = f"a hang, or no cluster after it: {error}"
        return Outcome(
            kind=injection.case.kind, workload=injection.workload, fault=injection.fault, problems=(problem,)
        )


def work(
    bench: Bench, injections: list[Injection], slack: float, keep: Callable[[list[Outcome]], None]
) -> list[Outcome]:
    """Calm runs first, then every injection; a cluster that a fault has used up is replaced.

    Args:
        bench: the cluster, not up.
        injections: in their order.
        slack: how many times the promised seconds a report may take.
        keep: receives all outcomes after each run.
    """
    outcomes: list[Outcome] = []
    bench.up()
    try:
        for workload in {injection.workload: None for injection in injections}:
            bench.submit(workload, f"calm-{workload}", check=True)
            bench.calm[workload] = bench.job(f"calm-{workload}")["result"]["result_digest"]
        for number, injection in enumerate(injections):
            if bench.min_hosts != injection.case.min_hosts:
                bench.down()
                bench.min_hosts = injection.case.min_hosts
                bench.up()
            outcome = run_to_an_end(bench, injection, f"run-{number}", slack)
            outcomes.append(outcome)
            keep(outcomes)
            print(f"{number + 1}/{len(injections)} {injection.workload}: {injection.fault}: "
                  f"{'; '.join(outcome.problems) or 'as specified'}", flush=True)  # fmt: skip
            if injection.case.kind == "kill-raylet" or any("hang" in problem for problem in outcome.problems):
                bench.down()
                bench.up()
    finally:
        bench.down()
    return outcomes


def table(outcomes: Iterable[Outcome]) -> str:
    """One row a kind of fault, as in docs/reliability.md."""
    lines = [
        "| fault | times | as specified | seconds to the report: median, worst | to the next step: median, worst |",
        "|---|---|---|---|---|",
    ]
    by_kind: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_kind.setdefault(outcome.kind, []).append(outcome)
    for kind, mine in by_kind.items():
        good = sum(not outcome.problems for outcome in mine)
        report = _middle_and_worst([outcome.report_s for outcome in mine])
        recovery = _middle_and_worst([outcome.recovery_s for outcome in mine])
        harmless = sum(outcome.harmless for outcome in mine)
        lines.append(
            f"| {kind} | {len(mine)} | {good}{f', {harmless} harmless' if harmless else ''} | {report} | {recovery} |"
        )
    return "\n".join(lines)


def load(file: Path) -> list[Outcome]:
    """The runs of a file that `--json` has written."""
    runs: list[dict[str, Any]] = json.loads(file.read_text())
    return [Outcome(**{**run, "problems": tuple(run["problems"])}) for run in runs]


def tell(outcomes: list[Outcome]) -> int:
    """Prints the table, and what was not as specified; returns the exit code."""
    bad = [outcome for outcome in outcomes if outcome.problems]
    print(f"{table(outcomes)}\n\n{len(outcomes) - len(bad)} of {len(outcomes)} as specified")
    for outcome in bad:
        print(f"{outcome.workload}: {outcome.fault}: {'; '.join(outcome.problems)}")
    return 1 if bad else 0


def _middle_and_worst(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f}, {max(known):.1f}" if known else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--only")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--slack", type=float, default=1.0)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tell", type=Path, nargs="+")
    options = parser.parse_args()
    if options.tell:
        return tell([outcome for file in options.tell for outcome in load(file)])
    injections = [
        injection
        for injection in plan(options.times, 2, 2, options.seed)
        if options.only in (None, injection.case.kind)
    ]
    if options.sample:
        injections = sample(injections, options.sample)
    part, parts = (int(word) for word in options.part.split("/"))
    injections = injections[part - 1 :: parts]
    folder = Path(tempfile.mkdtemp(prefix="slf-"))
    start = time.monotonic()

    def keep(outcomes: list[Outcome]) -> None:
        if options.json:
            options.json.write_text(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=1))

    try:
        outcomes = work(Bench(folder), injections, options.slack, keep)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
          f"{time.monotonic() - start:.0f} s\n")  # fmt: skip
    return tell(outcomes)


if __name__ == "__main__":
    sys.exit(main())
