"""Curves for TensorBoard, read back with TensorBoard's own reader."""

import asyncio
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from launcher.event_file import EVENT_FILES, EventFile
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.job_record import JobRecord
from launcher.mirror import fetch_record
from tests.conftest import job_spec


def curves(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def points(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in curves(folder).Scalars(name)]


def write(folder: Path, attempt: int, values: dict[int, float]) -> None:
    file = EventFile(folder, attempt, {"workload": "psum-check"})
    for step, value in values.items():
        file.add(step, {"loss": value})
    file.close()
    assert file.failure == ""


def report(step: int, **metrics: float) -> dict[str, Any]:
    return {"type": "report", "step": step, "total": 60, "metrics": metrics}


async def run_a_job(record: JobRecord) -> None:
    """Two attempts, the second from step 20, of two ranks that report."""
    for attempt, steps in ((1, (10, 20, 30)), (2, (30, 40))):
        record.attempt = attempt
        record.begin_attempt(f"job.{attempt}.0", ("a", "b"), ())
        for step in steps:
            for rank in (0, 1):
                record.hear(rank, report(step, train_loss=step / 8 + rank, tokens_per_s=1e9 * attempt))
        record.hear(0, report(45))  # nothing to draw
    record.hear(0, report(50, train_loss=math.nan))
    record.state = JobState.RUNNING
    record.end(JobState.SUCCEEDED, "")
    while record._mirroring and not record._mirroring.done():
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("state_folder")
def test_a_job_leaves_the_curves_of_rank_0_under_the_names_of_its_metrics(tmp_path: Path) -> None:
    storage = tmp_path / "storage" / "job.b7"
    record = JobRecord(job_spec(), JobFolder.create(job_spec(), "laptop"), str(storage))
    asyncio.run(run_a_job(record))
    folder = record.folder
    assert not list(folder.lines("events.jsonl"))[-1].get("why")
    for _ in range(2):
        found = curves(folder.path)
        assert set(found.Tags()["scalars"]) == {"train_loss", "tokens_per_s"}
        assert points(folder.path, "train_loss")[:4] == [(10, 10 / 8), (20, 20 / 8), (30, 30 / 8), (40, 40 / 8)]
        assert [value for _, value in points(folder.path, "tokens_per_s")] == [1e9, 1e9, 2e9, 2e9]
        last = found.Scalars("train_loss")[-1]
        assert last.step == 50 and math.isnan(last.value)
        times = [point.wall_time for point in found.Scalars("train_loss")]
        assert times == sorted(times)
        assert b"| workload | psum-check |" in found.Tensors("config/text_summary")[-1].tensor_proto.string_val[0]
        folder.remove()
        back = fetch_record(str(tmp_path / "storage"), "job")  # as when the head was lost with its disk
        assert back is not None
        folder = back


def test_a_curve_does_not_run_backwards_where_an_attempt_computes_steps_again(tmp_path: Path) -> None:
    write(tmp_path, 1, {10: 1.0, 20: 2.0, 25: 2.5, 40: 4.0})
    write(tmp_path, 2, {30: 3.0, 40: 4.5})
    assert points(tmp_path, "loss") == [(10, 1.0), (20, 2.0), (25, 2.5), (30, 3.0), (40, 4.5)]
    write(tmp_path, 3, {10: 0.5})  # from the start: what was beyond is not of this attempt
    assert points(tmp_path, "loss") == [(10, 0.5)]


def test_a_record_that_was_cut_by_a_crash_loses_only_itself(tmp_path: Path) -> None:
    write(tmp_path, 1, {10: 1.0, 20: 2.0})
    (file,) = tmp_path.glob(f"{EVENT_FILES}*")
    file.write_bytes(file.read_bytes()[:-3])
    write(tmp_path, 2, {20: 2.0, 30: 3.0})
    assert points(tmp_path, "loss") == [(10, 1.0), (20, 2.0), (30, 3.0)]


def test_a_job_goes_on_without_curves_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX.proto.event_pb2", None)
    file = EventFile(tmp_path, 1, {})
    for step in (1, 2):
        file.add(step, {"loss": 0.0})
    file.close()
    assert file.failure.startswith("ModuleNotFoundError")
