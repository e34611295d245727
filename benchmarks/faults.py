"""Injects faults into running jobs and holds how they end against what is promised: `python benchmarks/faults.py`.

Every run is a job of its own on a local cluster of two hosts x two devices, submitted as a user does. It passes if it
ended as specified (with the calm run's digest where it must), if the sentence that the user is told names the fault
and the rank or host that was hit and no other, with the step at which it was, within its bound, if the next attempt
goes on from the newest good checkpoint, as it says, and if no process of any of its attempts is left. Nothing is
retried; a failure is a row of the table and exit code 1. Seconds are those of the job's record; of a supervisor that is
killed, those of who reads it meanwhile, as the record's clock stands still until there is another.

    --times N      each fault on each workload so many times, at seeded steps (default 20: hours)
    --sample N     every fault once and a seeded sample, N runs in all (minutes)
    --only KIND    one kind of fault
    --seed N       of steps and places (default 7): another one hits elsewhere
    --slack X      bounds of X times the promised seconds, for a machine that others use too (default 1)
    --part K/N     only the Kth of N parts of the plan (from 1): parts can run side by side, or on different days
    --json FILE    the record, written after each run; where it is there, what it lacks is run: of this code and plan;
                   the folders of jobs that did not end as specified are kept beside it, with logs and stacks
    --tell FILES   runs nothing; prints the table of such files, which must be of one commit
"""

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench_cluster import Bench, left_of
from fault_cases import SEED, Case, Injection, plan, sample
from fault_clock import Follower
from fault_evidence import Evidence, Said
from fault_report import Record, RecordError, commit_of, end_session, merged, new_session, tell
from fault_verdict import Outcome, judge

Numbered = tuple[int, Injection]


def run(bench: Bench, number: int, injection: Injection, calm_digest: str, slack: float) -> Outcome:
    """Injects one fault and looks at everything that was promised."""
    name, before = f"run-{number}", bench.record()
    no_clock = injection.case.kind == "kill-supervisor"
    with Follower(bench.job_folder(name)) if no_clock else contextlib.nullcontext() as follower:
        done = [bench.submit(injection.workload, name, "--inject", injection.fault, settings=injection.settings)]
        if not bench.job_folder(name).exists():
            raise RuntimeError(
                f"the job was not taken: exit code {done[0].returncode}\n{done[0].stdout}{done[0].stderr}"
            )
        if injection.case.ends == "resumed-by-hand":
            bench.up()
            done.append(bench.run("submit", "--resume", name))
        events, reports = follower.stop() if follower else (bench.events(name), bench.lines(name, "metrics.jsonl"))
    again = bench.record()["cluster_id"] != before["cluster_id"]
    evidence = Evidence(
        commands=[Said(exit_code=command.returncode, printed=command.stdout + command.stderr) for command in done],
        job=bench.job(name),
        events=events,
        reports=reports,
        stacks=bench.stacks(name, attempt=1),
        left=[*bench.ranks_left(), *(left_of(before) if again else [])],
    )
    return judge(number, injection, evidence, calm_digest, slack)


def run_to_an_end(bench: Bench, number: int, injection: Injection, calm_digest: str, slack: float) -> Outcome:
    """As `run`; a job that does not end is an outcome too."""
    try:
        return run(bench, number, injection, calm_digest, slack)
    except (subprocess.TimeoutExpired, RuntimeError, OSError) as error:
        problem = f"a hang, or no cluster after it: {error!r}"
        return Outcome(
            number=number,
            kind=injection.case.name,
            workload=injection.workload,
            fault=injection.fault,
            problems=(problem,),
        )


def calm_digest_of(bench: Bench, record: Record, injection: Injection) -> str:
    """The result of the same job without a fault, run once for all that have its settings.

    Raises:
        RuntimeError: it does not succeed.
    """
    key = " ".join([injection.workload, *injection.settings])
    if key not in record.calm:
        name = f"calm-{len(record.calm)}"
        done = bench.submit(injection.workload, name, settings=injection.settings)
        if done.returncode:
            raise RuntimeError(f"a run without a fault: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        record.calm[key] = bench.job(name)["result"]["result_digest"]
    return record.calm[key]


def used_up(case: Case, outcome: Outcome) -> bool:
    """Whether the cluster cannot be used for another run."""
    return case.kind == "kill-raylet" or any("hang" in problem or "left" in problem for problem in outcome.problems)


def work(bench: Bench, injections: Sequence[Numbered], record: Record, file: Path | None) -> list[str]:
    """Runs what the record lacks; a cluster that a fault has used up is replaced.

    Args:
        bench: the cluster, not up.
        injections: all of them, with their numbers in the plan.
        record: to go on with.
        file: where it is kept.

    Returns:
        What is left of clusters that were ended.
    """
    left: list[str] = []

    def up_again() -> None:
        before = bench.record()
        bench.down()
        left.extend(left_of(before))
        bench.up()

    done = {outcome.number for outcome in record.runs}
    missing = [(number, injection) for number, injection in injections if number not in done]
    if not missing:
        return left
    session = new_session()
    record.sessions.append(session)
    bench.min_hosts, bench.spares = missing[0][1].case.min_hosts, missing[0][1].case.spares
    bench.up()
    try:
        for count, (number, injection) in enumerate(missing):
            wanted = injection.case.min_hosts, injection.case.spares
            if (bench.min_hosts, bench.spares) != wanted:
                bench.min_hosts, bench.spares = wanted
                up_again()
            calm_digest = calm_digest_of(bench, record, injection)
            began = time.monotonic()
            outcome = run_to_an_end(bench, number, injection, calm_digest, record.plan["slack"])
            record.runs.append(outcome)
            session.update(end_session(), runs=count + 1)
            record.save(file)
            job = bench.job_folder(f"run-{number}")
            if outcome.problems and file is not None and job.exists():
                shutil.copytree(job, file.with_suffix("") / job.name, dirs_exist_ok=True)
            print(f"{count + 1}/{len(missing)} {injection.workload}: {injection.fault}: "
                  f"{'; '.join(outcome.problems) or 'as specified'} ({time.monotonic() - began:.1f} s)",
                  flush=True)  # fmt: skip
            if used_up(injection.case, outcome):
                up_again()
    finally:
        before = bench.record()
        bench.down()
        left.extend(left_of(before))
    return left


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`: nothing is left running
    asked = {key: getattr(options, key) for key in ("times", "sample", "only", "seed", "slack", "part")}
    try:
        if options.tell:
            return tell(merged([Record.load(file) for file in options.tell]))
        record = Record.open(options.json, commit_of(), asked)
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    injections = [*enumerate(plan(options.times, options.seed))]
    injections = [(number, it) for number, it in injections if options.only in (None, it.case.kind)]
    if options.sample:
        injections = sample(injections, options.sample)
    part, parts = (int(word) for word in options.part.split("/"))
    folder = Path(tempfile.mkdtemp(prefix="slf-"))
    try:
        left = work(Bench(folder, warm=True), injections[part - 1 :: parts], record, options.json)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    code = tell(record)
    print("\n".join(f"`down` left {what}" for what in left))
    return 1 if left else code


if __name__ == "__main__":
    sys.exit(main())
