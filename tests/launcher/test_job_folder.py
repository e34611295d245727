"""A job's folder: written by one, read by all, whatever has become of the cluster."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from launcher.choose import choose_name
from launcher.errors import FailureError, UserError
from launcher.growing_files import MAX_OPEN
from launcher.job import InputFile, JobState
from launcher.job_folder import FORMAT, JobFolder, all_jobs, damaged_jobs, jobs_folder, settle_lost_jobs
from tests.conftest import job_spec
from tests.launcher.full_disk import full_disk

pytestmark = pytest.mark.usefixtures("state_folder")


def test_a_new_job_is_queued_and_has_its_folders(state_folder: Path) -> None:
    folder = JobFolder.create(job_spec("a"), "laptop")
    assert folder.path == jobs_folder() / "a" == state_folder / "jobs" / "a"
    assert sorted(path.name for path in folder.path.iterdir()) == ["job.json", "logs", "plots", "results"]
    job = folder.job()
    assert (job["format"], job["name"], job["cluster"], folder.state()) == (FORMAT, "a", "laptop", JobState.QUEUED)
    assert folder.spec() == job_spec("a")


def test_a_name_is_taken_once() -> None:
    folder = JobFolder.create(job_spec("a"), "laptop")
    folder.append("events.jsonl", {"at": 0.0})
    folder.close()
    with pytest.raises(FileExistsError):
        JobFolder.create(job_spec("a"), "laptop")
    assert len(list(folder.lines("events.jsonl"))) == 1


def test_lines_can_be_read_as_they_are_written() -> None:
    writer = JobFolder.create(job_spec("a"), "laptop")
    reader = JobFolder(writer.path)
    assert list(reader.lines("events.jsonl")) == []
    for number in range(3):
        writer.append("events.jsonl", {"at": number, "message": "two\nlines, é"})
        assert [line["at"] for line in reader.lines("events.jsonl")] == list(range(number + 1))
    writer.append_text("events.jsonl", '{"at": 3, "mess')  # half a line: the writer was ended
    assert [line["at"] for line in reader.lines("events.jsonl")] == [0, 1, 2]
    writer.close()


def test_a_closed_folder_can_be_written_again() -> None:
    folder = JobFolder.create(job_spec("a"), "laptop")
    folder.append_text("logs/attempt-1.rank-0.log", "one\n")
    folder.close()
    folder.append_text("logs/attempt-1.rank-0.log", "two\n")
    folder.close()
    (log,) = folder.files("logs")
    assert log.read_text() == "one\ntwo\n"


def test_job_json_is_replaced_as_a_whole() -> None:
    folder = JobFolder.create(job_spec("a"), "laptop")
    with (folder.path / "job.json").open() as old:
        folder.write_job(folder.job() | {"state": "RUNNING", "message": "x" * 10000})
        assert json.load(old)["state"] == "QUEUED"  # who has it open reads the old one to its end
    assert folder.state() is JobState.RUNNING
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []


def test_a_job_that_the_disk_has_no_room_for_leaves_its_name_free() -> None:
    with full_disk(), pytest.raises(OSError, match="too large"):
        JobFolder.create(job_spec("a"), "laptop")
    assert list(jobs_folder().iterdir()) == []
    JobFolder.create(job_spec("a"), "laptop")
    assert [job.name for job in all_jobs()] == ["a"]


def test_a_folder_that_is_being_made_is_no_job(state_folder: Path) -> None:
    JobFolder.create(job_spec("a"), "laptop").path.rename(jobs_folder() / ".a.x7")
    assert all_jobs() == [] and damaged_jobs() == []


def test_an_input_file_replaces_what_an_interrupted_copy_has_left(tmp_path: Path) -> None:
    folder = JobFolder.create(job_spec("a"), "laptop")
    source = tmp_path / "blob"
    source.write_bytes(b"all of it")
    kept = folder.path / "inputs" / "0" / "data.txt"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"all")
    for _ in range(2):
        folder.keep_input(source, InputFile(name="data.txt", sha256="0", num_bytes=9))
        assert kept.read_bytes() == b"all of it"
    assert folder.files("inputs") == [kept] and not list(folder.path.glob(".*"))


def test_files_below_a_part_are_listed_sorted() -> None:
    folder = JobFolder.create(job_spec("a"), "laptop")
    (folder.path / "plots" / "sub").mkdir()
    for name in ("z.png", "sub/b.png"):
        (folder.path / "plots" / name).touch()
    assert [path.relative_to(folder.path).as_posix() for path in folder.files("plots")] == [
        "plots/sub/b.png",
        "plots/z.png",
    ]
    assert folder.files("results") == []


def test_all_jobs_are_in_the_order_of_their_submission() -> None:
    assert all_jobs() == []
    before_the_clock_was_set_back = "2026-10-25T02:30:00.000+02:00"
    after_it = "2026-10-25T02:10:00.000+01:00"
    JobFolder.create(job_spec("b", after_it), "laptop")
    JobFolder.create(job_spec("a", before_the_clock_was_set_back), "laptop")
    JobFolder.create(job_spec("c", "2026-10-26T00:00:00.000+01:00"), "laptop")
    (jobs_folder() / "being-made").mkdir()
    (jobs_folder() / "a-file").touch()
    assert [job.name for job in all_jobs()] == ["a", "b", "c"]


def test_jobs_of_a_dead_cluster_are_settled_and_no_others() -> None:
    states = {"q": JobState.QUEUED, "r": JobState.RUNNING, "s": JobState.SUCCEEDED, "c": JobState.CANCELLED}
    for name, state in states.items():
        folder = JobFolder.create(job_spec(name), "laptop")
        folder.write_job(folder.job() | {"state": state})
    JobFolder.create(job_spec("other"), "desktop")
    assert sorted(settle_lost_jobs(all_jobs(), "laptop", "the cluster died")) == ["q", "r"]
    assert settle_lost_jobs(all_jobs(), "laptop", "again") == []
    found = {job.name: (job.state().value, job.job().get("message")) for job in all_jobs()}
    assert found == {
        "q": ("FAILED", "the cluster died"), "r": ("FAILED", "the cluster died"), "s": ("SUCCEEDED", None),
        "c": ("CANCELLED", None), "other": ("QUEUED", None),
    }  # fmt: skip


def test_a_removed_job_is_gone() -> None:
    folder = JobFolder.create(job_spec("a"), "laptop")
    folder.remove()
    assert all_jobs() == [] and not folder.path.exists()
    assert dataclasses.asdict(JobFolder.create(job_spec("a"), "laptop").spec())["name"] == "a"


def test_logs_of_many_ranks_do_not_use_up_the_open_files() -> None:
    folder = JobFolder.create(job_spec("a"), "laptop")
    before = len(os.listdir("/proc/self/fd"))
    for part in ("first\n", "second\n"):
        for rank in range(3 * MAX_OPEN):
            folder.append_text(f"logs/attempt-1.rank-{rank}.log", part)
    assert len(os.listdir("/proc/self/fd")) <= before + MAX_OPEN
    folder.close()
    assert {path.read_text() for path in folder.files("logs")} == {"first\nsecond\n"}


@pytest.mark.parametrize(
    ("content", "why"),
    [(b'{"name": "b", "sta', "Unterminated string"), (b"", "Expecting value"), (b"\xff\x00", "decode"),
     (b"[]", "it lacks name, "), (b'{"name": "b", "state": "RUNNING", "spec": {}}', "it lacks cluster")],
)  # fmt: skip
def test_a_damaged_record_is_named_and_hides_no_other(content: bytes, why: str) -> None:
    JobFolder.create(job_spec("a"), "laptop")
    damaged = JobFolder.create(job_spec("b"), "laptop")
    (damaged.path / "job.json").write_bytes(content)
    assert [folder.name for folder in all_jobs()] == ["a"]
    (told,) = damaged_jobs()
    assert told.startswith(f"job 'b': its record {damaged.path / 'job.json'} is damaged (") and why in told
    assert told.endswith("or remove the job: `spmd-launch jobs --prune b`")
    if "lacks" not in why:
        with pytest.raises(FailureError) as raised:
            damaged.state()
        assert str(raised.value) == told
    assert choose_name(None, "b") == "b-1"
    (damaged.path.parent / "b-1.0c").mkdir()  # a record of that name, which came while another had it
    assert choose_name(None, "b") == "b-2"
    with pytest.raises(UserError, match="there is a job of that name"):
        choose_name("b", "b")
