"""One integrity verdict for a job, and the summary that holds it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from launcher.cli.results import exit_codes
from launcher.command import Command
from launcher.job_folder import JobFolder
from launcher.outputs import read_summary, summarize_verdicts, write_summary
from tests.conftest import job_spec


def _verdict(step: int, status: str = "ok", rank: int = 0, checked: int = 100, single: int = 0) -> dict[str, Any]:
    return {"rank": rank, "step": step, "status": status, "bytes_checked": checked, "bytes_single_copy": single}


def test_no_check_is_never_ok() -> None:
    assert summarize_verdicts([])["status"] == "nothing-checked"


def test_the_last_check_speaks_for_the_job() -> None:
    verdicts = [
        _verdict(10),
        _verdict(10, rank=1),
        _verdict(20, checked=70, single=30),
        _verdict(20, rank=1, checked=70),
    ]
    summary = summarize_verdicts(verdicts)
    assert (summary["status"], summary["num_checks"], summary["bytes_checked"]) == ("ok", 2, 70)


def test_an_end_where_nothing_was_compared_is_not_ok() -> None:
    summary = summarize_verdicts([_verdict(10), _verdict(20, "nothing-checked", checked=0, single=100)])
    assert (summary["status"], summary["bytes_checked"], summary["bytes_single_copy"]) == ("nothing-checked", 0, 100)


def test_one_divergence_is_never_forgotten() -> None:
    assert summarize_verdicts([_verdict(10, "diverged", rank=1), _verdict(20)])["status"] == "diverged"


def test_ranks_are_heard_in_any_order() -> None:
    late = [_verdict(20, rank=1), _verdict(10, "nothing-checked", rank=0, checked=0)]
    assert summarize_verdicts(late)["status"] == "ok"


def _job(command: Command | None = None) -> Path:
    return JobFolder.create(dataclasses.replace(job_spec(), command=command), "c").path


RESULT = {"metrics": {"loss": 1.5}, "result_digest": "d" * 64, "diagnostics": {"warnings": ["w"]}, "seconds": 3.0}


def test_a_summary_is_written_whole_and_read_back(state_folder: Path) -> None:
    folder = _job()
    short = write_summary(folder, RESULT, [_verdict(1)])
    assert short == {
        "metrics": {"loss": 1.5},
        "result_digest": "d" * 64,
        "integrity": summarize_verdicts([_verdict(1)]),
    }
    assert read_summary(folder) == short | {"diagnostics": {"warnings": ["w"]}}
    assert json.loads((folder / "results" / "summary.json").read_text()) == read_summary(folder)


def test_a_job_without_results_has_no_summary(state_folder: Path) -> None:
    assert read_summary(_job()) is None


def test_a_summary_that_a_script_has_left_stays_and_is_not_taken_for_ours(state_folder: Path) -> None:
    folder = _job(Command(words=("python", "train.py")))
    (folder / "results" / "summary.json").write_text("of the script")
    assert read_summary(folder) is None
    write_summary(folder, RESULT, [])
    assert (folder / "results" / "summary.json").read_text() == "of the script"
    found = read_summary(folder)
    assert found is not None and found["metrics"] == {"loss": 1.5}


def test_each_ranks_end_in_the_last_attempt_is_told(tmp_path: Path) -> None:
    """A rank that has raised and waits for its peers is stopped: it is told as what it was."""
    events: list[dict[str, Any]] = [
        {"type": "attempt", "hosts": ["a", "b", "c", "d"]},
        {"type": "exit", "rank": 0, "code": 5},
        {"type": "attempt", "hosts": ["a", "b", "c", "d"]},
        {"type": "error", "rank": 1, "error": {"type": "ValueError"}},
        {"type": "error", "rank": 3, "error": {"type": "ValueError"}},
        {"type": "exit", "rank": 1, "code": 1, "stopped": False},
        {"type": "exit", "rank": 2, "code": -11, "stopped": False},
        {"type": "exit", "rank": 3, "code": -9, "stopped": True},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert exit_codes(JobFolder(tmp_path)) == {0: "stopped", 1: "1", 2: "signal 11", 3: "raised ValueError"}
