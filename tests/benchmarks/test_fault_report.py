"""Records of fault runs: continued at the same commit and plan alone, and told together only where they may be."""

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import faults
import pytest
from fault_cases import Injection, plan
from fault_report import Record, RecordError, commit_of, merged, table, tell
from fault_verdict import Outcome

PLAN: dict[str, Any] = {"times": 1, "sample": None, "only": None, "seed": 7, "slack": 1.0, "part": "1/2"}
SESSION = {"began": "a", "ended": "b", "runs": 3, "machine": "2 cores", "python": "3.11", "load": 0.5}


def outcome(number: int, new_s: float | None = 2.0, problems: tuple[str, ...] = ()) -> Outcome:
    return Outcome(
        number=number, kind="kill", workload="transformer", fault="kill rank=1 step=6", problems=problems, new_s=new_s,
        told="rank 1 on host faults-1 was killed",
    )  # fmt: skip


def record(*numbers: int, commit: str = "c0ffee", part: str = "1/2") -> Record:
    runs = [outcome(number) for number in numbers]
    return Record(commit=commit, plan={**PLAN, "part": part}, sessions=[SESSION], calm={"transformer": "d"}, runs=runs)


def test_a_file_is_continued_at_its_commit_and_plan_alone(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    assert Record.open(file, "c0ffee", PLAN).runs == []
    record(0, 2).save(file)
    assert Record.open(file, "c0ffee", PLAN) == record(0, 2)
    with pytest.raises(RecordError, match="has runs of commit c0ffee, and this is beef: begin another file"):
        Record.open(file, "beef", PLAN)
    with pytest.raises(RecordError, match=r"has runs of the plan .*: begin another file"):
        Record.open(file, "c0ffee", {**PLAN, "seed": 8})
    file.write_text("[]")
    with pytest.raises(RecordError, match="is no record of fault runs, or of another version"):
        Record.open(file, "c0ffee", PLAN)


def test_parts_are_told_together_but_not_commits_nor_runs_twice_nor_other_calm_results() -> None:
    both = merged([record(0, 2), record(1, 3, part="2/2")])
    assert ([one.number for one in both.runs], len(both.sessions)) == ([0, 2, 1, 3], 2)
    with pytest.raises(RecordError, match="different commits, and no table is made of them: beef, c0ffee"):
        merged([record(0), record(1, commit="beef")])
    with pytest.raises(RecordError, match=r"runs \[0\] are in more than one"):
        merged([record(0), record(0, 1)])
    with pytest.raises(RecordError, match="calm runs of 'transformer' have different results"):
        merged([record(0), dataclasses.replace(record(1), calm={"transformer": "e"})])


def test_the_table_counts_who_was_back_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [outcome(0), outcome(1, new_s=4.0, problems=("a new step came after 4.0 s, not 3",)), outcome(2, new_s=None)]
    assert "| kill | 3 | 2 | - | - | 3.0, 4.0 (1 of 2) |" in table(runs)
    assert tell(dataclasses.replace(record(), runs=runs)) == 1
    out = capsys.readouterr().out
    assert "commit c0ffee; slack 1" in out and "a to b: 3 runs, 2 cores, Python 3.11, load 0.5" in out
    bounded = "kill, kill while it saves, raise, exit: 3 s times the slack from the report to the first new step"
    assert f"2 of 3 as specified; {bounded}" in out
    assert "told: rank 1 on host faults-1 was killed" in out


def test_what_runs_makes_another_commit_and_what_does_not_is_the_same(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    def write(file: str, text: str, *, commit: bool) -> None:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if commit:
            git("add", ".")
            git("commit", "-qm", file)

    git("init", "-q")
    write("launcher/a.py", "1", commit=True)
    first = commit_of(tmp_path)
    write("docs/page.md", "1", commit=True)
    write("benchmarks/soak.py", "1", commit=True)
    write("tests/test_a.py", "1", commit=False)
    assert len(first) == 12 and commit_of(tmp_path) == first
    write("launcher/a.py", "2", commit=False)
    assert commit_of(tmp_path).startswith(f"{first} with changes ")
    write("launcher/a.py", "2", commit=True)
    second = commit_of(tmp_path)
    write("benchmarks/fault_verdict.py", "1", commit=True)
    assert len({first, second, commit_of(tmp_path)}) == 3


class NoCluster:
    """Stands for a cluster that is brought up and ended, and runs nothing."""

    def __init__(self, jobs: Path) -> None:
        self.jobs = jobs
        self.min_hosts, self.spares = 2, 0
        self.done: list[str] = []

    def up(self) -> None:
        self.done.append(f"up {self.min_hosts} of {2 + self.spares}")

    def down(self) -> None:
        self.done.append("down")

    def record(self) -> dict[str, Any]:
        return {}

    def job_folder(self, name: str) -> Path:
        return self.jobs / name


def test_what_is_on_record_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, bench, ran = tmp_path / "runs.json", NoCluster(tmp_path), []

    def run(bench: Any, number: int, injection: Injection, calm_digest: str, slack: float) -> Outcome:
        ran.append(number)
        return outcome(number)

    monkeypatch.setattr(faults, "run_to_an_end", run)
    monkeypatch.setattr(faults, "calm_digest_of", lambda bench, record, injection: "d")
    monkeypatch.setattr(faults, "left_of", lambda record: [])
    cases = {one.case.name: (number, one) for number, one in enumerate(plan(1))}
    injections = [cases[name] for name in ("kill", "exit", "kill-raylet", "kill-raylet with a spare", "kill-holder")]
    faults.work(bench, injections[:1], Record.open(file, "c0ffee", PLAN), file)
    assert (ran, bench.done) == ([injections[0][0]], ["up 2 of 2", "down"])
    faults.work(bench, injections, Record.open(file, "c0ffee", PLAN), file)
    assert ran == [number for number, _ in injections]
    ups = [word for word in bench.done[2:] if word != "down"]  # fewer hosts, a spare, and again after each lost one
    assert ups == ["up 2 of 2", "up 1 of 2", "up 1 of 2", "up 2 of 3", "up 2 of 3", "up 2 of 2"]
    saved = Record.open(file, "c0ffee", PLAN)
    assert [session["runs"] for session in saved.sessions] == [1, 4]
    assert faults.work(bench, injections, saved, file) == [] and len(bench.done) == 14


def test_the_folder_of_a_job_not_as_specified_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, bench = tmp_path / "kept" / "runs.json", NoCluster(tmp_path / "jobs")
    file.parent.mkdir()

    def run(bench: NoCluster, number: int, injection: Injection, calm_digest: str, slack: float) -> Outcome:
        stacks = bench.job_folder(f"run-{number}") / "logs" / "stacks.txt"
        stacks.parent.mkdir(parents=True)
        stacks.write_text("in gloo")
        return outcome(number, problems=("it hung",) if number == 2 else ())

    monkeypatch.setattr(faults, "run_to_an_end", run)
    monkeypatch.setattr(faults, "calm_digest_of", lambda bench, record, injection: "d")
    monkeypatch.setattr(faults, "left_of", lambda record: [])
    kill = next(one for one in plan(1) if one.case.kind == "kill")
    faults.work(bench, [(1, kill), (2, kill)], Record.open(file, "c0ffee", PLAN), file)
    assert [kept.name for kept in (tmp_path / "kept" / "runs").iterdir()] == ["run-2"]
    assert (tmp_path / "kept" / "runs" / "run-2" / "logs" / "stacks.txt").read_text() == "in gloo"
