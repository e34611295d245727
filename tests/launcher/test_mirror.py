"""A job's record survives the loss of the state folder, in its storage."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from launcher.errors import FailureError
from launcher.job import InputFile, JobSpec
from launcher.job_folder import JobFolder, jobs_folder
from launcher.mirror import fetch_record, mirror_record
from launcher.storage import storage_for
from tests.conftest import job_spec

pytestmark = pytest.mark.usefixtures("state_folder")

SPEC = job_spec()
DIGEST = hashlib.sha256(b"input").hexdigest()


def test_what_was_mirrored_comes_back(tmp_path: Path) -> None:
    folder = JobFolder.create(SPEC, "laptop")
    folder.append("events.jsonl", {"at": 0.0, "type": "state", "state": "QUEUED"})
    data = tmp_path / "data.txt"
    data.write_bytes(b"input")
    folder.keep_input(data, InputFile(name="data.txt", sha256=DIGEST, num_bytes=5))
    storage = storage_for(str(tmp_path / "storage"), SPEC)
    good: set[str] = set()
    mirror_record(folder, storage, good)
    folder.append("events.jsonl", {"at": 1.0, "type": "note", "message": "later"})
    mirror_record(folder, storage, good)
    before = folder.job()
    folder.close()
    folder.remove()

    back = fetch_record(str(tmp_path / "storage"), "job")
    assert back is not None and back.path == jobs_folder() / "job"
    assert back.job() == before and back.spec() == SPEC
    assert [event["at"] for event in back.lines("events.jsonl")] == [0.0, 1.0]
    assert (back.path / "inputs" / DIGEST / "data.txt").read_bytes() == b"input"


@pytest.fixture
def mirrored(tmp_path: Path) -> tuple[JobFolder, Path]:
    """A job with an input file, and the copy of that file in the storage."""
    folder = JobFolder.create(SPEC, "laptop")
    folder.append("metrics.jsonl", {"at": 0.0})
    (tmp_path / "data.txt").write_bytes(b"input")
    folder.keep_input(tmp_path / "data.txt", InputFile(name="data.txt", sha256=DIGEST, num_bytes=5))
    folder.close()
    mirror_record(folder, storage_for(str(tmp_path), SPEC), set())
    return folder, tmp_path / f"job.{SPEC.job_id}" / "record" / "inputs" / DIGEST / "data.txt"


def test_a_torn_copy_of_an_input_file_is_mended(mirrored: tuple[JobFolder, Path], tmp_path: Path) -> None:
    folder, copy = mirrored
    copy.write_bytes(b"in")  # the head was lost while it wrote
    mirror_record(folder, storage_for(str(tmp_path), SPEC), set())
    assert copy.read_bytes() == b"input" and [path.name for path in copy.parent.iterdir()] == ["data.txt"]


def test_a_damaged_input_file_does_not_come_back(mirrored: tuple[JobFolder, Path], tmp_path: Path) -> None:
    folder, copy = mirrored
    copy.write_bytes(b"in")
    folder.remove()
    back = fetch_record(str(tmp_path), "job")
    assert back is not None and back.job()["name"] == "job" and back.files("inputs") == []


def test_a_fetch_that_fails_leaves_nothing_and_the_next_one_has_all(
    mirrored: tuple[JobFolder, Path], tmp_path: Path
) -> None:
    folder, copy = mirrored
    folder.remove()
    metrics = copy.parents[2] / "metrics.jsonl"
    metrics.rename(tmp_path / "aside")
    metrics.mkdir()  # read after the input files, and before the record
    with pytest.raises(IsADirectoryError):
        fetch_record(str(tmp_path), "job")
    assert list(jobs_folder().iterdir()) == []
    metrics.rmdir()
    (tmp_path / "aside").rename(metrics)
    back = fetch_record(str(tmp_path), "job")
    assert back is not None and len(list(back.lines("metrics.jsonl"))) == len(back.files("inputs")) == 1


def test_what_is_here_without_a_record_is_no_record(mirrored: tuple[JobFolder, Path], tmp_path: Path) -> None:
    folder, _ = mirrored
    (folder.path / "job.json").unlink()
    (folder.path / "logs" / "attempt-1.rank-0.log").write_text("hello")
    back = fetch_record(str(tmp_path), "job")
    assert back is not None and back.spec() == SPEC
    assert (back.path / "logs" / "attempt-1.rank-0.log").read_text() == "hello"


@pytest.mark.parametrize("replace", [False, True])
def test_a_record_that_is_here_is_replaced_only_by_request(
    mirrored: tuple[JobFolder, Path], tmp_path: Path, replace: bool
) -> None:
    folder, _ = mirrored
    folder.write_job(folder.job() | {"cluster": "newer"})
    (folder.path / "logs" / "attempt-1.rank-0.log").write_text("hello")
    back = fetch_record(str(tmp_path), "job", replace=replace)
    assert back is not None and back.job()["cluster"] == ("laptop" if replace else "newer")
    assert [path.read_text() for path in back.files("logs")] == ["hello"]
    assert [path.name for path in jobs_folder().iterdir()] == ["job"]


def test_of_two_jobs_that_had_the_name_the_last_one_comes(tmp_path: Path) -> None:
    """And they share no checkpoint: a new job must not go on with the state of one that was pruned."""
    later = dataclasses.replace(SPEC, job_id="0c", submitted="2026-11-21T05:30:00.000+01:00")
    for spec in (later, SPEC):
        _mirrored(spec, tmp_path).remove()
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


def test_a_record_that_is_here_is_not_replaced_by_that_of_a_later_job_of_its_name(tmp_path: Path) -> None:
    later = dataclasses.replace(SPEC, job_id="0c", submitted="2026-11-22T04:00:00.000+00:00")
    for spec in (later, SPEC):
        folder = _mirrored(spec, tmp_path)
        if spec is later:
            folder.remove()
    back = fetch_record(str(tmp_path), "job", replace=True)
    assert back is not None and back.spec() == SPEC
    exact = fetch_record(str(tmp_path), "job.0c")
    assert exact is not None and exact.name == "job.0c" and exact.spec() == later
    (folder.path / "job.json").unlink()  # as of a copy from a remote head that broke off
    (folder.path / ".job-id").write_text(SPEC.job_id)
    back = fetch_record(str(tmp_path), "job")
    assert back is not None and back.spec() == SPEC


def _mirrored(spec: JobSpec, storage: Path) -> JobFolder:
    """A new job's record, with its copy in the storage."""
    folder = JobFolder.create(spec, "laptop")
    mirror_record(folder, storage_for(str(storage), spec), set())
    folder.close()
    return folder
