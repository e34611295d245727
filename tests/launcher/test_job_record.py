"""The record of a job that lives: what it books, and what it makes of it for the next decision. Real files, no Ray."""

import asyncio
import json
from pathlib import Path
from threading import Event

import pytest

from launcher import job_record
from launcher.attempt import RankStatus
from launcher.cli.live import LiveLine
from launcher.first_cause import FirstCause
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.job_record import JobRecord
from launcher.recovery import AttemptEnd, Cause, Policy, Retry, Stop, decide
from tests.conftest import job_spec

pytestmark = pytest.mark.usefixtures("state_folder")

HOSTS = ("a", "b")


def fail(record: JobRecord, cause: Cause = Cause.FAILURE) -> None:
    record.attempt += 1
    record.move(JobState.STARTING)
    record.fail_attempt(FirstCause(sentence="rank 0 on host a raised", cause=cause))


def new_record() -> JobRecord:
    record = JobRecord(job_spec(), JobFolder.create(job_spec(), "laptop"), "storage")
    record.event("submitted")
    record.enqueue()
    return record


def decision(record: JobRecord) -> object:
    return decide(record.ends, policy=Policy(max_failures=1), hosts=HOSTS, available=HOSTS, sizes=[2])


def test_a_warning_that_all_ranks_give_is_one_note() -> None:
    record = new_record()
    for rank in (0, 1):
        record.hear(rank, {"type": "warning", "text": "loss is nan, first seen at step 7"})
    assert record.notes == ["loss is nan, first seen at step 7"]
    record.folder.close()


def test_a_job_resumed_by_hand_has_its_whole_budget_again() -> None:
    first = new_record()
    fail(first)
    assert isinstance(decision(first), Retry)
    fail(first)
    assert isinstance(decision(first), Stop)
    first.move(JobState.FAILED)
    first.folder.close()

    again = JobRecord(job_spec(), JobFolder.reopen(job_spec(), "laptop"), "storage")
    again.event("resumed-by-hand")  # in this order: the supervisor books on the record that it has made
    again.enqueue()
    fail(again)
    assert again.ends == (AttemptEnd(cause=Cause.FAILURE),)
    assert isinstance(decision(again), Retry)
    again.folder.close()


def test_a_supervisor_started_again_knows_the_ends_that_the_one_before_it_knew() -> None:
    record = new_record()
    fail(record, Cause.PREEMPTED)
    fail(record, Cause.DIVERGED)
    record.hear(0, {"type": "replayed", "digests": {}, "suspects": ["b"], "message": "b was wrong"})
    assert record.ends == (AttemptEnd(cause=Cause.PREEMPTED), AttemptEnd(cause=Cause.DIVERGED, suspects=("b",)))
    adopted = JobRecord(job_spec(), JobFolder(record.folder.path), "storage")
    adopted.event("adopted", state=record.state)
    assert adopted.ends == record.ends
    for folder in (record.folder, adopted.folder):
        folder.close()


def test_a_glance_shows_the_same_line_and_does_not_grow_with_the_ranks() -> None:
    record = new_record()
    record.state = JobState.RUNNING
    for steps in ((), (3,), (3, 3, 3), (5, 4, 3, 3, 9)):
        record.ranks = [
            RankStatus(rank, f"h{rank}", phase="run", step=step, total=9, metrics={"loss": float(rank)})
            for rank, step in enumerate(steps)
        ]
        glance = record.glance()
        assert LiveLine("a").render(glance) == LiveLine("a").render(record.snapshot())
        assert len(glance["ranks"]) <= 2
    assert [rank["rank"] for rank in glance["ranks"]] == [0, 2]
    record.folder.close()


def test_the_storage_has_the_end_of_a_job_that_ended_while_its_record_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, go_on, copy = Event(), Event(), job_record.mirror_record

    def slow_copy(folder: JobFolder, storage: str) -> None:
        copy(folder, storage)
        copied.set()
        go_on.wait()

    async def end_during_a_copy() -> None:
        record = JobRecord(job_spec(), JobFolder.create(job_spec(), "laptop"), str(tmp_path / "storage"))
        record.enqueue()
        record.mirror()
        await asyncio.to_thread(copied.wait)
        record.end(JobState.CANCELLED, "by hand")
        go_on.set()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        record.folder.close()

    monkeypatch.setattr(job_record, "mirror_record", slow_copy)
    asyncio.run(end_during_a_copy())
    assert json.loads((tmp_path / "storage" / "record" / "job.json").read_text())["state"] == "CANCELLED"
