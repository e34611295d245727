"""A job's record survives the loss of the state folder, in its storage."""

import json
from pathlib import Path

import pytest

from launcher.job import InputFile, JobSpec
from launcher.job_folder import JobFolder, jobs_folder
from launcher.mirror import fetch_record, mirror_record

SPEC = JobSpec(
    name="job", workload="psum-check", settings={}, config={}, seed=0, num_hosts=2, checkpoint_every=0,
    check_every=0, code_digest="", files={}, versions={}, submitted="2026-11-21T04:00:00.000+00:00",
)  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPMD_LAUNCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_what_was_mirrored_comes_back(tmp_path: Path) -> None:
    folder = JobFolder.create(SPEC, "laptop")
    folder.append("events.jsonl", {"at": 0.0, "type": "state", "state": "QUEUED"})
    data = tmp_path / "data.txt"
    data.write_bytes(b"input")
    folder.keep_input(data, InputFile(name="data.txt", sha256="5" * 64, num_bytes=5))
    storage = str(tmp_path / "storage" / "job")
    mirror_record(folder, storage)
    folder.append("events.jsonl", {"at": 1.0, "type": "note", "message": "later"})
    mirror_record(folder, storage)
    before = folder.job()
    folder.close()
    folder.remove()

    back = fetch_record(storage, "job")
    assert back is not None and back.path == jobs_folder() / "job"
    assert back.job() == before and back.spec() == SPEC
    assert [event["at"] for event in back.lines("events.jsonl")] == [0.0, 1.0]
    assert (back.path / "inputs" / ("5" * 64) / "data.txt").read_bytes() == b"input"


def test_nothing_comes_from_an_empty_storage(tmp_path: Path) -> None:
    assert fetch_record(str(tmp_path / "storage" / "job"), "job") is None
    half = tmp_path / "half" / "record"
    half.mkdir(parents=True)
    (half / "events.jsonl").write_text(json.dumps({}))
    assert fetch_record(str(tmp_path / "half"), "job") is None, "a copy counts when its job.json is there"
