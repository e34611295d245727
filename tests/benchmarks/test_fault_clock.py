"""What a job puts on record is timed by who reads it, as the record's own clock can stand still."""

import json
import time
from pathlib import Path

from fault_clock import Follower
from fault_evidence import Evidence, seconds_to_steps

START_S = 1.0  # of the process that reads, on a busy machine
OUTAGE_S = 0.5


def append(file: Path, **line: object) -> None:
    with file.open("a") as opened:
        opened.write(json.dumps(line) + "\n")


def test_time_without_a_supervisor_counts(tmp_path: Path) -> None:
    """By the record 0.01 s pass from the fault to the report, and 0.02 s from there to the next step."""
    folder = tmp_path / "job"
    with Follower(folder) as follower:
        folder.mkdir()
        append(folder / "metrics.jsonl", at=1.0, rank=0, step=6)
        append(folder / "events.jsonl", at=1.0, type="injected")
        time.sleep(START_S + OUTAGE_S)
        append(folder / "events.jsonl", at=1.01, type="attempt-failed")
        time.sleep(OUTAGE_S)
        append(folder / "metrics.jsonl", at=1.03, rank=0, step=8)
        events, reports = follower.stop()
    assert [event["type"] for event in events] == ["injected", "attempt-failed"]
    assert [row["step"] for row in reports] == [6, 8]
    assert events[1]["at"] - events[0]["at"] >= OUTAGE_S / 2
    next_s, new_s = seconds_to_steps(Evidence(events=events, reports=reports))
    assert next_s == new_s and next_s is not None and next_s >= OUTAGE_S / 2


def test_a_job_without_a_record_has_left_nothing(tmp_path: Path) -> None:
    with Follower(tmp_path / "job") as follower:
        assert follower.stop() == ([], [])
