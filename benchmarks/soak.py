"""Throws a random fault every 30-60 s at one long job, again and again: `python benchmarks/soak.py`.

For each workload, on a local cluster of two hosts x two devices: a short run tells the steps per second, a calm run of
as many steps as fill the time gives the result and the seconds, and then the same job is run under fire. It passes if
every fault was named within its bound and survived, if the end is the calm run's, bit for bit, and if nothing is left.
The goodput is the calm run's seconds by the soaked run's, from submission to end, detection and lost work included.

    --minutes N    for how long faults are thrown at each workload (default 20)
    --workload W   one workload; by default all three in turn
    --seed N       of the kinds, places and moments of the faults
    --slack X      bounds of X times the promised seconds, for a machine that others use too (default 1)
"""

import argparse
import dataclasses
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_cluster import Bench
from fault_cases import DEVICES_PER_HOST
from soak_faults import Thrown, throw_from_outside
from soak_plan import CHECKPOINT_EVERY_S, WORKLOADS, Throw, plan
from soak_report import Hit, Run, Soak, computed_over, not_skipped, table, wrong
from soak_watch import ENDED, PERIOD_S, JobWatch

from cluster.processes import ProcessId, marked_processes

PROBE_S = 10.0  # what the steps per second are taken from must span so much
PROBE_STEPS = 300
CALM_TIMEOUT_S = 4 * 60 * 60.0
REACH_TIMEOUT_S = 300.0  # to the next fault's step, beyond what a calm run needs
REPORT_TIMEOUT_S = 60.0
RECOVERY_TIMEOUT_S = 120.0
END_TIMEOUT_S = 600.0
RECORD_TIMEOUT_S = 10.0


def run_calm(bench: Bench, workload: str, name: str, steps: int, checkpoint_every: int) -> Run:
    """The job without a fault.

    Raises:
        RuntimeError: it did not succeed.
    """
    watch = submit(bench, workload, name, steps, checkpoint_every)
    job = to_the_end(bench, name, watch, CALM_TIMEOUT_S)
    if job["state"] != "SUCCEEDED" or watch.ended is None:
        raise RuntimeError(f"{name}, a run without a fault: {job['state']}, not SUCCEEDED: {job['message']}")
    return Run(job=job, seconds=watch.ended - watch.started, steps_per_s=watch.steps_per_s())


def submit(bench: Bench, workload: str, name: str, steps: int, checkpoint_every: int, *more: str) -> JobWatch:
    """Submits the job and returns at once.

    Raises:
        RuntimeError: it was refused.
    """
    watch = JobWatch(bench.job_folder(name))
    settings = WORKLOADS[workload].with_steps(steps)
    words = ["--detach", *more]
    done = bench.submit(workload, name, *words, settings=settings, checkpoint_every=checkpoint_every)
    if done.returncode:
        raise RuntimeError(f"{name} was not taken: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return watch


def to_the_end(bench: Bench, name: str, watch: JobWatch, timeout_s: float) -> dict[str, Any]:
    """Waits for the end of a job; returns its record, which is written just after the event that tells of the end."""
    watch.until(lambda: False, timeout_s)
    deadline = time.monotonic() + RECORD_TIMEOUT_S
    while watch.ended is not None and bench.job(name)["state"] not in ENDED and time.monotonic() < deadline:
        time.sleep(PERIOD_S)
    return bench.job(name)


def measure_rate(bench: Bench, workload: str) -> float:
    """Steps per second, from a run that is long enough to tell."""
    steps, number = PROBE_STEPS, 1
    while True:
        rate = run_calm(bench, workload, f"probe-{workload}-{number}", steps, 0).steps_per_s
        if steps / rate >= PROBE_S:
            return rate
        steps, number = WORKLOADS[workload].whole(2.5 * PROBE_S * rate), number + 1


def hit(bench: Bench, name: str, watch: JobWatch, throw: Throw, reach_s: float, slack: float) -> Hit | None:
    """Throws one fault when its step is reached, and follows what comes of it; None: the job ended before.

    Args:
        bench: the cluster.
        name: of the job.
        watch: of the job.
        throw: the fault; an injected one happens by itself.
        reach_s: how long it may take until its step is reached.
        slack: how many times the promised seconds its report may take.
    """
    before = len(watch.events)
    if throw.injection is None:
        if not watch.until(lambda: watch.step >= throw.step, reach_s) or watch.ended is not None:
            return None
        thrown = throw_from_outside(bench, name, throw)
    else:
        injected = watch.until(lambda: watch.first("injected", before), reach_s)
        if not injected:
            return Hit(throw=throw, problem=f"it did not happen within {reach_s:.0f} s, in attempt {throw.attempt}")
        thrown = Thrown(at=injected["seen"])
    report = watch.until(
        lambda: watch.first("attempt-failed", before) or computed_over(watch.events[before:]), REPORT_TIMEOUT_S
    )
    if report and report["type"] == "flipped":
        # The faults after it are meant for attempts by their numbers: so this one ends too.
        kill = Throw(kind="kill", place=throw.place // DEVICES_PER_HOST, step=throw.step, attempt=throw.attempt)
        instead = hit(bench, name, watch, kill, reach_s, slack)
        return instead and dataclasses.replace(instead, computed_over=True)
    if not report:
        return Hit(throw=throw, problem=f"no report within {REPORT_TIMEOUT_S:g} s")
    reached, after = watch.step, watch.events.index(report)
    recovered = watch.until(lambda: watch.first("recovered", after), RECOVERY_TIMEOUT_S)
    if not recovered or not watch.until(lambda: watch.step > reached, RECOVERY_TIMEOUT_S):
        return Hit(throw=throw, problem=f"no step beyond {reached} within {RECOVERY_TIMEOUT_S:g} s")
    report_s, since = report["seen"] - thrown.at, watch.events[before:]
    problems = [wrong(throw, report["message"], since, report_s, slack), not_skipped(thrown.damaged, since)]
    return Hit(
        throw=throw,
        problem="; ".join(problem for problem in problems if problem),
        report_s=report_s,
        next_s=recovered["seen"] - thrown.at,
        new_s=time.monotonic() - thrown.at,
    )


def soak(bench: Bench, workload: str, minutes: float, seed: int, slack: float) -> Soak:
    """Measures, runs calmly, then under fire.

    Raises:
        RuntimeError: a calm run did not succeed.
    """
    kind = WORKLOADS[workload]
    rate = measure_rate(bench, workload)
    steps = kind.whole(max(60 * minutes * rate, 2 * kind.num_warmup))
    checkpoint_every = kind.whole(CHECKPOINT_EVERY_S * rate)
    print(f"{workload}: {rate:.1f} steps/s; {steps} steps, a checkpoint every {checkpoint_every}", flush=True)
    calm = run_calm(bench, workload, f"calm-{workload}", steps, checkpoint_every)
    throws = plan(steps=steps, steps_per_s=calm.steps_per_s, seed=seed)
    print(f"{workload}: the calm run took {calm.seconds:.0f} s; {len(throws)} faults to throw", flush=True)
    name = f"soak-{workload}"
    budget = ["--max-failures", str(2 * len(throws)), "--max-preemptions", str(2 * len(throws))]
    faults = [word for throw in throws if throw.injection for word in ("--inject", throw.injection)]
    watch = submit(bench, workload, name, steps, checkpoint_every, *budget, *faults)
    hits: list[Hit] = []
    for throw in throws:
        reach_s = REACH_TIMEOUT_S + 2 * max(0, throw.step - watch.step) / calm.steps_per_s
        found = hit(bench, name, watch, throw, reach_s, slack)
        if found is None:
            break
        hits.append(found)
        kind = f"{throw.kind}, computed over, and a kill" if found.computed_over else throw.kind
        print(f"{workload}: {kind} at step {throw.step}: {found.problem or 'as promised'} "
              f"({found.report_s:.1f}, {found.next_s:.1f}, {found.new_s:.1f} s)", flush=True)  # fmt: skip
    job = to_the_end(bench, name, watch, END_TIMEOUT_S + 4 * max(0, steps - watch.step) / calm.steps_per_s)
    seconds = (watch.ended or time.monotonic()) - watch.started
    left = bench.ranks_left() if watch.ended is not None else []
    soaked = Run(job=job, seconds=seconds, steps_per_s=watch.steps_per_s())
    return Soak(workload=workload, steps=steps, calm=calm, soaked=soaked, hits=hits, num_planned=len(throws), left=left)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--workload", choices=WORKLOADS)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--slack", type=float, default=1.0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`: nothing is left running
    soaks, problems = [], []
    with tempfile.TemporaryDirectory(prefix="sls-", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder))
        bench.up()
        record = bench.record()
        try:
            for workload in [options.workload] if options.workload else WORKLOADS:
                soaks.append(soak(bench, workload, options.minutes, options.seed, options.slack))
                problems += [f"{workload}: {problem}" for problem in soaks[-1].problems()]
        finally:
            bench.down()
        left = marked_processes(record["cluster_id"], ProcessId.from_json(record["holder"]))
        problems += [f"`down` left processes: {[process.pid for process in left]}"] if left else []
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
          f"seed {options.seed}\n\n{table(soaks)}")  # fmt: skip
    print("\n".join(problems) or "\neverything as promised")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
