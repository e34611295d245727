"""Folders of jobs as the supervisor makes, finds, opens and removes them. Real files, no Ray."""

import asyncio
import dataclasses
import hashlib
import json
import os
from pathlib import Path

import pytest

from launcher import records_on_head
from launcher.blobs import BlobStore
from launcher.errors import FailureError, UserError
from launcher.job import InputFile, JobState
from launcher.job_folder import JobFolder, jobs_folder
from launcher.job_record import JobRecord
from launcher.mirror import fetch_record, mirror_record
from launcher.records_on_head import RecordsOnHead, require_written
from launcher.storage import storage_for
from tests.conftest import job_spec
from tests.launcher.full_disk import full_disk

pytestmark = pytest.mark.usefixtures("state_folder")

DATA = b"x" * 4000
SPEC = dataclasses.replace(
    job_spec(), files={"data": InputFile(name="a.txt", sha256=hashlib.sha256(DATA).hexdigest(), num_bytes=len(DATA))}
)
KEPT = f"inputs/{SPEC.files['data'].sha256}/a.txt"


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    store = BlobStore(tmp_path / "blobs")
    store.put(SPEC.files["data"].sha256, DATA, is_file=True)
    return store


def ended(folder: JobFolder, storage: Path) -> JobRecord:
    """The record of a job that has failed."""
    record = JobRecord(SPEC, folder, str(storage))
    record.enqueue()
    record.state = JobState.FAILED
    record.save()
    record.close()
    return record


def test_a_new_job_has_its_inputs_and_a_name_is_taken_once(blobs: BlobStore) -> None:
    folder = RecordsOnHead("laptop").open(SPEC, blobs, None, resume=False)
    assert folder.state() is JobState.QUEUED and (folder.path / KEPT).read_bytes() == DATA
    with pytest.raises(UserError, match=r"already: choose another --name, or spmd-launch jobs --prune job\.b7$"):
        RecordsOnHead("laptop").open(SPEC, blobs, None, resume=False)
    with pytest.raises(UserError, match=f"or move {folder.path} away"):  # it is of a cluster that cannot be asked here
        RecordsOnHead("other").open(SPEC, blobs, None, resume=False)
    (folder.path / "job.json").unlink()
    with pytest.raises(UserError, match=f"or move {folder.path} away"):
        RecordsOnHead("laptop").open(SPEC, blobs, None, resume=False)


def test_a_job_that_there_is_no_room_for_is_refused_and_its_name_stays_free(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise OSError("no links")

    monkeypatch.setattr(os, "link", no_links)
    for room in (0, 3000):  # not for the record, and not for the input file
        with full_disk(room), pytest.raises(FailureError, match=r"cannot put job 'job' on record: .*; make room"):
            RecordsOnHead("laptop").open(SPEC, blobs, None, resume=False)
        assert list(jobs_folder().iterdir()) == []
    folder = RecordsOnHead("laptop").open(SPEC, blobs, None, resume=False)
    assert (folder.path / KEPT).read_bytes() == DATA


def test_a_resumed_job_gets_whole_inputs_and_one_that_there_is_no_room_for_stays_as_it_was(
    blobs: BlobStore, tmp_path: Path
) -> None:
    head = RecordsOnHead("laptop")
    live = ended(head.open(SPEC, blobs, None, resume=False), tmp_path)
    (live.folder.path / KEPT).unlink()
    (live.folder.path / KEPT).write_bytes(b"xx")  # as an interrupted copy leaves it
    with full_disk(), pytest.raises(FailureError, match="cannot put job"):
        head.open(SPEC, blobs, live, resume=True)
    assert live.folder.state() is JobState.FAILED
    assert head.open(SPEC, blobs, live, resume=True).state() is JobState.QUEUED
    assert (live.folder.path / KEPT).read_bytes() == DATA


def test_only_a_job_that_has_ended_and_is_on_record_goes_on(blobs: BlobStore, tmp_path: Path) -> None:
    head = RecordsOnHead("laptop")
    record = JobRecord(SPEC, head.open(SPEC, blobs, None, resume=False), str(tmp_path))
    with pytest.raises(UserError, match="job 'job' is QUEUED: only a job that has ended can be resumed"):
        head.open(SPEC, blobs, record, resume=True)

    async def end_without_room() -> None:
        with full_disk():
            record.enqueue()
            record.state = JobState.CANCELLED
            record.save()
            with pytest.raises(UserError, match="the head cannot write the record of job 'job', which is CANCELLED: "):
                head.open(SPEC, blobs, record, resume=True)
            with pytest.raises(UserError, match=r"events\.jsonl: File too large; make room there; or --force$"):
                require_written([record], "; or --force")
            assert record.folder.state() is JobState.QUEUED
        require_written([record])
        assert record.folder.state() is JobState.CANCELLED
        assert head.open(SPEC, blobs, record, resume=True).state() is JobState.QUEUED

    asyncio.run(end_without_room())
    record.close()


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_job_that_has_ended_is_removed_even_if_the_disk_does_not_know_yet(
    blobs: BlobStore, tmp_path: Path, on_disk: bool
) -> None:
    head = RecordsOnHead("laptop")
    live = ended(head.open(SPEC, blobs, None, resume=False), tmp_path)
    if not on_disk:
        live.folder.write_job(live.folder.job() | {"state": JobState.RUNNING})
        with pytest.raises(UserError, match="job 'job' is RUNNING: only a job that has ended can be removed"):
            head.remove("job", "b7", None)
    assert not RecordsOnHead("other").remove("job", "b7", live)
    assert not head.remove("job", "b8", None), "it is another job that had the name"
    assert head.remove("job", "b7", live)
    assert not head.remove("job", "b7", None) and list(jobs_folder().iterdir()) == []


def test_a_record_is_brought_once_from_the_storage_however_many_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def fetch(root: str, name: str, job_id: str) -> JobFolder | None:
        fetched.append(name)
        return fetch_record(root, name, job_id)

    monkeypatch.setattr(records_on_head, "fetch_record", fetch)
    folder = JobFolder.create(job_spec(), "gone")
    mirror_record(folder, storage_for(str(tmp_path), job_spec()), set())
    folder.remove()
    folder.path.mkdir()  # as an interrupted copy leaves it
    (folder.path / "metrics.jsonl").write_text("{}")

    async def program() -> None:
        head = RecordsOnHead("laptop")

        async def resume() -> None:
            await head.find(job_spec(), str(tmp_path))
            folder.write_job(folder.job() | {"cluster": f"{folder.job()['cluster']}, resumed"})

        await asyncio.gather(resume(), resume())
        with pytest.raises(UserError, match=r"--resume other: neither the head nor .* has a record of it"):
            await head.find(job_spec("other"), str(tmp_path))

    asyncio.run(program())
    assert folder.job()["cluster"] == "gone, resumed, resumed" and fetched == ["job", "other"]


def test_a_storage_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    record = tmp_path / "job.b7" / "record"
    record.mkdir(parents=True)
    (record / "job.json").write_text(json.dumps({"spec": {"submitted": job_spec().submitted}}))
    (record / "events.jsonl").mkdir()
    with pytest.raises(FailureError, match=f"--resume job: its record cannot be brought from {tmp_path}: .*directory"):
        asyncio.run(RecordsOnHead("laptop").find(job_spec(), str(tmp_path)))
    assert list(jobs_folder().iterdir()) == []


ANOTHER = dataclasses.replace(SPEC, job_id="0c", submitted="2026-11-22T04:00:00.000+00:00")


def test_a_job_does_not_go_on_in_the_record_of_another_of_its_name(blobs: BlobStore, tmp_path: Path) -> None:
    head = RecordsOnHead("laptop")
    live = ended(head.open(ANOTHER, blobs, None, resume=False), tmp_path)
    before = (live.folder.path / "job.json").read_bytes()
    words = (
        r"^--resume job: the head of cluster 'laptop' has another job of that name on record: expected job\.b7, "
        r"submitted 2026-11-21.*, got job\.0c, submitted 2026-11-22.*; nothing was changed\..* --prune job\.0c$"
    )
    with pytest.raises(UserError, match=words):
        asyncio.run(head.find(SPEC, str(tmp_path)))
    with pytest.raises(UserError, match=words):
        head.open(SPEC, blobs, live, resume=True)
    with pytest.raises(UserError, match=rf"or move its record on the head away first, {live.folder.path}, .*'laptop'$"):
        asyncio.run(RecordsOnHead("other").find(SPEC, str(tmp_path)))  # which could not remove it
    assert (live.folder.path / "job.json").read_bytes() == before
    assert [path.name for path in jobs_folder().iterdir()] == ["job"]


def test_of_the_jobs_of_a_name_in_the_storage_the_one_that_is_resumed_is_brought(tmp_path: Path) -> None:
    for spec in (SPEC, ANOTHER):
        folder = JobFolder.create(spec, "gone")
        mirror_record(folder, storage_for(str(tmp_path), spec), set())
        folder.close()
        folder.remove()
    asyncio.run(RecordsOnHead("laptop").find(SPEC, str(tmp_path)))
    assert JobFolder(jobs_folder() / "job").spec().job_id == SPEC.job_id
    with pytest.raises(UserError, match=r"has a record of it \(id ff\)"):
        asyncio.run(RecordsOnHead("laptop").find(dataclasses.replace(SPEC, name="x", job_id="ff"), str(tmp_path)))


def test_a_head_that_was_a_client_goes_on_with_its_copy(tmp_path: Path) -> None:
    folder = JobFolder.create(SPEC, "elsewhere")
    (jobs_folder() / "job.b7").mkdir()  # a copy that broke off is none
    folder.path.rename(jobs_folder() / "whole")
    with pytest.raises(UserError, match="neither the head nor"):
        asyncio.run(RecordsOnHead("laptop").find(SPEC, str(tmp_path)))
    # Another job had the name when it was copied, and was pruned since.
    (jobs_folder() / "whole").rename(jobs_folder() / "job.b7")
    asyncio.run(RecordsOnHead("laptop").find(SPEC, str(tmp_path)))
    assert [path.name for path in jobs_folder().iterdir()] == ["job"] and folder.spec() == SPEC
