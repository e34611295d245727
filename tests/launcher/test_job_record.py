"""The record of a job that lives: what it books, and what it makes of it for the next decision. Real files, no Ray."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from launcher import job_record
from launcher.attempt import RankStatus
from launcher.cli.live import LiveLine
from launcher.command import Command
from launcher.faults import parse_fault
from launcher.first_cause import FirstCause
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.job_record import JobRecord
from launcher.rank_notes import note_of
from launcher.rank_process import Message
from launcher.recovery import AttemptEnd, Cause, Policy, Retry, Stop, decide
from tests.conftest import job_spec
from tests.launcher.full_disk import full_disk

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


SAVED = {"type": "checkpoint", "path": "/s/step_x", "bytes": 1, "seconds": 0.1}
HALF_WRITTEN = {
    "type": "checkpoint-skipped",
    "step": 32,
    "path": "/s/step_32",
    "why": "half-written: it has no manifest",
}
DAMAGED = {"type": "checkpoint-skipped", "step": 24, "path": "/s/step_24", "why": "leaf w is not what was saved"}


def told(record: JobRecord, *events: Message, rank: int = 0) -> list[str]:
    """The notes that come of what an attempt on both hosts hears."""

    async def program() -> None:
        record.attempt += 1
        record.begin_attempt(
            f"job.{record.attempt}", HOSTS, [RankStatus(rank, host) for rank, host in enumerate(HOSTS)]
        )
        for event in events:
            record.hear(rank, event)
        await record.mirrored()

    before = len(record.notes)
    asyncio.run(program())
    return record.notes[before:]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[JobRecord]:
    record = JobRecord(job_spec(), JobFolder.create(job_spec(), "laptop"), str(tmp_path / "storage"))
    yield record
    record.close()


@pytest.mark.parametrize(
    ("resumed", "step"),
    [
        ({"step": 16, "path": "/s/step_16", "why": ""}, 16),
        ({"step": 0, "path": "", "why": "from step 0: no checkpoint"}, None),
        ({"step": 32, "path": "/s/step_32", "why": ""}, 32),  # committed, and the word of it was lost with its rank
    ],
)
def test_where_an_attempt_really_starts_is_what_is_told_from_then_on(
    record: JobRecord, resumed: Message, step: int | None
) -> None:
    assert told(record, {**SAVED, "step": 16}, {**SAVED, "step": 24}) == []
    assert told(record, HALF_WRITTEN, DAMAGED, {"type": "resumed", **resumed}) == [
        "checkpoint of step 24 is left out: leaf w is not what was saved",
        f"attempt 2 starts from step {step or 0}, not from step 24",
    ]
    assert record.checkpoint_step == record.folder.job()["checkpoint_step"] == step
    assert told(record, {"type": "resumed", **resumed}) == [], "as was said"


def test_other_ranks_and_first_attempts_say_nothing_of_where_it_starts(record: JobRecord) -> None:
    start = {"type": "resumed", "step": 0, "path": "", "why": "from step 0: no checkpoint"}
    assert told(record, start) == []
    assert told(record, {**start, "step": 8, "path": "/s/step_8"}, rank=1) == []
    assert record.checkpoint_step is None


def test_a_checkpoint_that_fails_is_told_once_until_one_is_committed_again(record: JobRecord) -> None:
    failures = [
        {"type": "checkpoint-failed", "step": step, "why": "rank 1: no space left", "last_good": good}
        for step, good in ((8, None), (16, None), (32, 24))
    ]
    assert told(record, *failures[:2], {**SAVED, "step": 24}, failures[2]) == [
        "checkpoint of step 8 failed: rank 1: no space left; the last good one: none",
        "checkpoint of step 32 failed: rank 1: no space left; the last good one: step 24",
    ]


def test_a_copy_in_the_storage_that_fails_is_told_once_an_attempt(
    record: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: JobFolder, storage: str, good: set[str]) -> None:
        raise RuntimeError("503 of the bucket")

    monkeypatch.setattr(job_record, "mirror_record", refuse)
    for _ in range(2):
        (note,) = told(record, {**SAVED, "step": 8}, {**SAVED, "step": 16})
        assert note.startswith(f"its record could not be copied to {record.storage}: RuntimeError: 503 of the bucket; ")
    assert "mirror-failed" in {event["type"] for event in record.folder.lines("events.jsonl")}


def test_a_full_disk_ends_no_job_and_its_record_is_whole_once_there_is_room(
    record: JobRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.record_writer.RETRY_PERIOD_S", 0.01)
    seen: list[str] = []

    async def program() -> None:
        record.enqueue()
        record.move(JobState.STARTING)
        before = (record.folder.path / "events.jsonl").stat().st_size
        with full_disk(before + 10):  # some bytes of the first line go in
            for step in (8, 16):
                record.hear(0, {"type": "report", "step": step, "total": 16, "metrics": {"loss": 1.0}})
                record.hear(0, {"type": "log", "text": f"step {step}\n"})
            record.hear(0, {**SAVED, "step": 16})
            record.move(JobState.RUNNING)
            record.changed.clear()
            record.end(JobState.SUCCEEDED, "")
            assert record.changed.is_set() and record.state is JobState.SUCCEEDED
            await asyncio.sleep(0.05)
            seen.extend(record.notes)
            assert record.writer.late == f"{record.folder.path / 'events.jsonl'}: File too large"
            assert JobFolder(record.folder.path).state() is JobState.STARTING
            waiting = [event["type"] for event in record.folder.lines("events.jsonl")]
            assert "checkpoint" in waiting and waiting.count("state") == 4, "what waits can be read"
        while record.writer.late:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        await record.mirrored()

    asyncio.run(program())
    told_of_disk = [note for note in seen if note.startswith("the head cannot write the job's record: ")]
    assert len(told_of_disk) == 1 and "job.json: File too large; the job goes on" in told_of_disk[0]
    assert record.notes[-1] == "the head has written the job's record"
    reader = JobFolder(record.folder.path)
    assert reader.state() is JobState.SUCCEEDED and reader.job()["checkpoint_step"] == 16
    assert [line["step"] for line in reader.lines("metrics.jsonl")] == [8, 16]
    assert [path.read_text() for path in reader.files("logs")] == ["step 8\nstep 16\n"]
    lines = (reader.path / "events.jsonl").read_text().splitlines()
    states = [event["state"] for event in map(json.loads, lines) if event["type"] == "state"]
    assert states == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
    copied = json.loads((tmp_path / "storage" / "record" / "job.json").read_text())
    assert copied["state"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"in_memory": True, "element": [2, 1]}, "position[2, 1] in the host's memory, as it was gathered, at step 16"),
        ({"in_memory": False, "element": []}, "position on device 3 at step 16"),
    ],
)
def test_a_flip_that_was_asked_for_is_told_with_its_place(record: JobRecord, place: Message, words: str) -> None:
    event = {"type": "flipped", "leaf": "position", "device": 3, "index": 5, "bit": 7, "step": 16, **place}
    assert told(record, event, rank=1) == [f"rank 1 on host b: --inject flipped bit 7 of {words}"]


@pytest.mark.parametrize(("state", "notes"), [(JobState.SUCCEEDED, 1), (JobState.CANCELLED, 0)])
def test_a_fault_that_never_happened_is_a_note_at_the_end(record: JobRecord, state: JobState, notes: int) -> None:
    record.spec = dataclasses.replace(record.spec, faults=(parse_fault("kill rank=1 step=500").to_json(),))
    assert told(record) == []

    async def end() -> None:
        record.state = JobState.RUNNING
        record.ranks[1].step = 200
        record.end(state, "")
        await record.mirrored()

    asyncio.run(end())
    why = "the last step reported is 200"
    assert record.notes == [f"--inject 'kill rank=1 step=500' did not happen: {why}"] * notes
    assert record.folder.job()["notes"] == record.notes


def warning(finding: str, *ranks: int, text: str = "is odd", fatal: bool = False) -> Message:
    return {"type": "watchdog", "finding": finding, "ranks": list(ranks), "text": text, "fatal": fatal}


def test_warnings_are_told_once_an_attempt_and_what_ends_it_by_its_end(record: JobRecord) -> None:
    suspected = warning("host-silent", 1, text="its agent has not answered for 9 s")
    words = [
        "host b: its agent has not answered for 9 s",
        "rank 1 on host b is odd",
        "rank 0 on host a and 1 more is odd",
    ]
    for _ in range(2):
        found = told(record, suspected, warning("silent", 1), {**suspected, "text": "for 10 s"},
                     warning("together", 0, 1), warning("silent", 1), warning("stuck", 1, fatal=True))  # fmt: skip
        assert found == words


@pytest.mark.parametrize(("watched", "notes"), [(False, 0), (True, 1)])
def test_a_script_that_nobody_watches_always_seems_to_stand(watched: bool, notes: int) -> None:
    script = dataclasses.replace(job_spec(), command=Command(words=("python", "t.py")), watch_launches=watched)
    assert (note_of(0, warning("together", 0, 1), HOSTS, script) is not None) == bool(notes)
    assert note_of(1, warning("stuck", 1), HOSTS, script) is not None


def test_a_barrier_that_is_off_is_told_once_for_all_ranks_unless_it_was_switched_off(record: JobRecord) -> None:
    off = {"type": "barrier-off", "why": "this JAX has no hook"}
    assert told(record, off, off) == ["programs are not compared before they run: this JAX has no hook"]
    assert note_of(0, off, HOSTS, dataclasses.replace(job_spec(), program_barrier=False)) is None


def test_the_storage_has_the_end_of_a_job_that_ended_while_its_record_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, go_on, copy = Event(), Event(), job_record.mirror_record

    def slow_copy(folder: JobFolder, storage: str, good: set[str]) -> None:
        copy(folder, storage, good)
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
