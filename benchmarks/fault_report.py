"""The record of runs in a file that can be continued, and the table of one or several such files."""

import dataclasses
import datetime
import hashlib
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fault_cases import BACK_S, CASES
from fault_verdict import Outcome

FORMAT = 2
ROOT = Path(__file__).resolve().parent.parent
# Runs can go on after a commit that changes nothing of this: tests, pages.
WHAT_RUNS = (
    *("launcher", "cluster", "workloads", "requirements.lock"),
    *("benchmarks/bench_cluster.py", "benchmarks/fault*.py"),
)


class RecordError(ValueError):
    """A file that cannot be continued, or files that cannot be told as one."""


@dataclasses.dataclass(kw_only=True)
class Record:
    """Runs of one plan at one commit.

    Attributes:
        commit: of the code, as `commit_of` gives it.
        plan: what decides which runs there are, and the slack they are judged with.
        sessions: when and on what it was worked at: `began`, `ended`, `runs`, `machine`, `python`, `load` (at the end).
        calm: `{workload and settings: result_digest}` of runs without a fault.
        runs: those that are done.
    """

    commit: str
    plan: Mapping[str, Any]
    sessions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    calm: dict[str, str] = dataclasses.field(default_factory=dict)
    runs: list[Outcome] = dataclasses.field(default_factory=list)

    @classmethod
    def load(cls, file: Path) -> "Record":
        """Reads what `save` has written.

        Raises:
            RecordError: it is something else, or of another version of this benchmark.
        """
        try:
            value = json.loads(file.read_text())
            if value["format"] != FORMAT:
                raise RecordError(f"{file} has format {value['format']}, expected {FORMAT}: begin another file")
            runs = [Outcome(**{**run, "problems": tuple(run["problems"])}) for run in value.pop("runs")]
            return cls(**{key: entry for key, entry in value.items() if key != "format"}, runs=runs)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise RecordError(f"{file} is no record of fault runs, or of another version ({error!r})") from error

    @classmethod
    def open(cls, file: Path | None, commit: str, plan: Mapping[str, Any]) -> "Record":
        """The record that is to be continued, or a new one.

        Raises:
            RecordError: the file has runs of another commit or plan.
        """
        if file is None or not file.exists():
            return cls(commit=commit, plan=plan)
        found = cls.load(file)
        if found.commit != commit:
            raise RecordError(f"{file} has runs of commit {found.commit}, and this is {commit}: begin another file")
        if found.plan != plan:
            raise RecordError(f"{file} has runs of the plan {found.plan}, and this is {plan}: begin another file")
        return found

    def save(self, file: Path | None) -> None:
        """Writes it, so that a reader sees the old file or the new one."""
        if file is None:
            return
        temporary = file.with_name(f".{file.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1))
        temporary.replace(file)


def commit_of(root: Path = ROOT) -> str:
    """The last commit that changed what runs, and a digest of what is changed of it since, if anything is."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout

    commit, changes = git("log", "-1", "--format=%H", "--", *WHAT_RUNS)[:12], git("diff", "HEAD", "--", *WHAT_RUNS)
    return f"{commit} with changes {hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else commit


def new_session() -> dict[str, Any]:
    """What is known of a session at its beginning."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    machine = f"{os.cpu_count()} cores, {models[0] if models else platform.machine()}"
    return {"began": _now(), "machine": machine, "python": platform.python_version(), "runs": 0} | end_session()


def end_session() -> dict[str, Any]:
    return {"ended": _now(), "load": round(os.getloadavg()[0], 1)}


def merged(records: Sequence[Record]) -> Record:
    """Several sessions' or parts' records as one.

    Raises:
        RecordError: they are of different commits, one run is in two of them, or their calm runs differ.
    """
    commits = sorted({record.commit for record in records})
    if len(commits) > 1:
        raise RecordError(f"these are runs of different commits, and no table is made of them: {', '.join(commits)}")
    whole = Record(commit=commits[0], plan=records[0].plan)
    seen = set()
    for record in records:
        whole.sessions += record.sessions
        for job, digest in record.calm.items():
            if whole.calm.setdefault(job, digest) != digest:
                raise RecordError(f"calm runs of {job!r} have different results: {whole.calm[job]} and {digest}")
        plan = json.dumps({**record.plan, "part": None}, sort_keys=True)
        twice = [outcome.number for outcome in record.runs if (plan, outcome.number) in seen]
        if twice:
            raise RecordError(f"runs {twice[:8]} are in more than one of these files")
        seen |= {(plan, outcome.number) for outcome in record.runs}
        whole.runs += record.runs
    return whole


def table(outcomes: Iterable[Outcome]) -> str:
    """One row a kind of fault, as in docs/reliability.md."""
    columns = [
        "fault", "times", "as specified", "seconds to the report: median, worst",
        "from there to the next step: median, worst", f"to the first new step: median, worst (within {BACK_S:g} s)",
    ]  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    by_kind: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_kind.setdefault(outcome.kind, []).append(outcome)
    for kind in [case.name for case in CASES if case.name in by_kind]:
        mine = by_kind[kind]
        good = sum(not outcome.problems for outcome in mine)
        harmless = sum(outcome.harmless for outcome in mine)
        new = [outcome.new_s for outcome in mine if outcome.new_s is not None]
        within = f" ({sum(seconds <= BACK_S for seconds in new)} of {len(new)})" if new else ""
        cells = [
            kind, str(len(mine)), f"{good}{f', {harmless} harmless' if harmless else ''}",
            _middle_and_worst([outcome.report_s for outcome in mine]),
            _middle_and_worst([outcome.next_s for outcome in mine]), f"{_middle_and_worst(new)}{within}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tell(record: Record) -> int:
    """Prints of what commit, when and where, the table, and what was not as specified; returns the exit code."""
    bad = [outcome for outcome in record.runs if outcome.problems]
    print(f"commit {record.commit}; slack {record.plan['slack']:g}")
    for session in record.sessions:
        print(f"{session['began']} to {session['ended']}: {session['runs']} runs, {session['machine']}, "
              f"Python {session['python']}, load {session['load']}")  # fmt: skip
    bounded = ", ".join(case.name for case in CASES if case.next_s is not None)
    print(f"\n{table(record.runs)}\n\n{len(record.runs) - len(bad)} of {len(record.runs)} as specified; "
          f"{bounded}: {BACK_S:g} s times the slack from the report to the first new step")  # fmt: skip
    for outcome in bad:
        print(f"\n{outcome.number} {outcome.workload}: {outcome.fault}\n  {'; '.join(outcome.problems)}\n"
              f"  told: {outcome.told}")  # fmt: skip
    return 1 if bad else 0


def _middle_and_worst(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f}, {max(known):.1f}" if known else "-"


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
