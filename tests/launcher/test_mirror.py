"""A job's record survives the loss of the state folder, in its storage."""

import dataclasses
import json
from pathlib import Path

import pytest

from launcher.errors import FailureError
from launcher.job import InputFile
from launcher.job_folder import JobFolder, jobs_folder
from launcher.mirror import fetch_record, mirror_record
from launcher.storage import storage_for
from tests.conftest import job_spec

pytestmark = pytest.mark.usefixtures("state_folder")

SPEC = job_spec()


def test_what_was_mirrored_comes_back(tmp_path: Path) -> None:
    folder = JobFolder.create(SPEC, "laptop")
    folder.append("events.jsonl", {"at": 0.0, "type": "state", "state": "QUEUED"})
    data = tmp_path / "data.txt"
    data.write_bytes(b"input")
    folder.keep_input(data, InputFile(name="data.txt", sha256="5" * 64, num_bytes=5))
    storage = storage_for(str(tmp_path / "storage"), SPEC)
    mirror_record(folder, storage)
    folder.append("events.jsonl", {"at": 1.0, "type": "note", "message": "later"})
    mirror_record(folder, storage)
    before = folder.job()
    folder.close()
    folder.remove()

    back = fetch_record(str(tmp_path / "storage"), "job")
    assert back is not None and back.path == jobs_folder() / "job"
    assert back.job() == before and back.spec() == SPEC
    assert [event["at"] for event in back.lines("events.jsonl")] == [0.0, 1.0]
    assert (back.path / "inputs" / ("5" * 64) / "data.txt").read_bytes() == b"input"


def test_of_two_jobs_that_had_the_name_the_last_one_comes(tmp_path: Path) -> None:
    """And they share no checkpoint: a new job must not go on with the state of one that was pruned."""
    later = dataclasses.replace(SPEC, job_id="0c", submitted="2026-11-21T05:30:00.000+01:00")
    for spec in (later, SPEC):
        folder = JobFolder.create(spec, "laptop")
        mirror_record(folder, storage_for(str(tmp_path), spec))
        folder.close()
        folder.remove()
    assert storage_for(str(tmp_path), later) != storage_for(str(tmp_path), SPEC)
    back = fetch_record(str(tmp_path), "job")
    assert back is not None and back.spec() == later


def test_nothing_comes_from_an_empty_storage(tmp_path: Path) -> None:
    assert fetch_record(str(tmp_path / "storage"), "job") is None
    half = tmp_path / "half" / "job.b7" / "record"
    half.mkdir(parents=True)
    (half / "events.jsonl").write_text(json.dumps({}))
    assert fetch_record(str(tmp_path / "half"), "job") is None, "a copy counts when its job.json is there"


@pytest.mark.parametrize("text", ['{"name": "jo', "[]", '{"spec": {}}', '{"spec": {"submitted": "soon"}}'])
def test_a_damaged_copy_is_named_and_nothing_is_brought(tmp_path: Path, text: str) -> None:
    copy = tmp_path / "job.b7" / "record"
    copy.mkdir(parents=True)
    (copy / "job.json").write_text(text)
    with pytest.raises(
        FailureError, match=r"the copy of its record in the storage, .*job\.b7/record/job\.json, is damaged"
    ):
        fetch_record(str(tmp_path), "job")
    assert not (jobs_folder() / "job").exists()
