"""A client's copy of a head's records: only what is new travels, and no head can write outside the client's folder."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import FailureError
from launcher.job import InputFile
from launcher.job_folder import JobFolder
from launcher.protocol import Line, Message
from launcher.record_copy import PIECE, _have, _store, news
from launcher.record_names import find_record
from tests.conftest import job_spec


class Pair:
    """A head and a client with a state folder each, and no connection between them but a list of messages."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        self._monkeypatch = monkeypatch

    def at(self, side: str) -> Path:
        self._monkeypatch.setenv("SPMD_LAUNCH_HOME", str(self.folder / side))
        return self.folder / side / "jobs"

    def refresh(self, *, only_records: bool = False, inputs: bool = False) -> list[str]:
        """What `record_copy.refresh` does; returns the files that travelled."""
        self.at("client")
        request: Message = {"names": None, "have": _have(None), "only_records": only_records, "inputs": inputs}
        self.at("head")
        answers = list(news("lab", request))
        self.at("client")
        for answer in answers:
            _store("lab", answer)
        return [answer["path"] for answer in answers]

    def same(self, path: str) -> bool:
        return (self.at("client") / "job" / path).read_bytes() == (self.at("head") / "job" / path).read_bytes()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    pair = Pair(tmp_path, monkeypatch)
    pair.at("head")
    job = JobFolder.create(job_spec(), "lab")
    job.append("events.jsonl", {"type": "submitted"})
    (job.path / "results" / "summary.json").write_text("{}")
    source = tmp_path / "data"
    source.write_bytes(b"input")
    job.keep_input(source, InputFile(name="data", sha256="d1", num_bytes=5))
    yield pair
    job.close()


def test_all_of_a_job_comes_and_its_record_last(pair: Pair) -> None:
    assert pair.refresh() == ["events.jsonl", "results/summary.json", "job.json"]
    assert all(pair.same(path) for path in ("events.jsonl", "results/summary.json", "job.json"))


def test_only_what_is_new_travels_again(pair: Pair) -> None:
    pair.refresh()
    assert pair.refresh() == ["job.json"]
    with (pair.at("head") / "job" / "events.jsonl").open("a") as file:
        file.write('{"type":"state"}\n')
    (pair.at("head") / "job" / "results" / "summary.json").write_text("[]")
    assert pair.refresh() == ["events.jsonl", "results/summary.json", "job.json"]
    assert pair.same("events.jsonl") and pair.same("results/summary.json")


@pytest.mark.parametrize("name", ["logs/attempt-1.rank-0.log", "events.out.tfevents.1795323588.attempt-001"])
def test_a_file_that_grows_is_continued_and_a_long_one_comes_in_pieces(pair: Pair, name: str) -> None:
    file = pair.at("head") / "job" / name
    file.write_bytes(b"x" * (PIECE + 10))
    assert pair.refresh().count(name) == 2
    with file.open("ab") as end:
        end.write(b"more")
    assert pair.refresh().count(name) == 1
    assert pair.same(name)


def test_a_list_of_jobs_brings_their_records_alone(pair: Pair) -> None:
    assert pair.refresh(only_records=True) == ["job.json"]


def test_inputs_come_when_they_are_asked_for(pair: Pair) -> None:
    assert "inputs/d1/data" in pair.refresh(inputs=True)
    assert pair.same("inputs/d1/data")


def test_jobs_of_another_cluster_are_not_told(pair: Pair) -> None:
    pair.at("head")
    assert not list(news("other", {"names": None, "have": {}, "only_records": False, "inputs": False}))


@pytest.mark.parametrize(
    ("job", "path"), [("job", "../x"), ("../job", "logs/x.log"), ("job", "/etc/x"), ("/job", "job.json"), ("..", "a")]
)
def test_a_head_cannot_write_outside_the_jobs_folder(pair: Pair, job: str, path: str) -> None:
    pair.at("client")
    answer = {"job": job, "job_id": "b7", "path": path, "offset": 0, "mtime_ns": 1, "data": "", "record": {}}
    with pytest.raises(FailureError, match="outside"):
        _store("lab", answer)
    assert not [
        file for file in pair.folder.rglob("*") if file.is_file() and "head" not in file.parts and file.name != "data"
    ]


def test_an_id_cannot_lead_outside_either(pair: Pair) -> None:
    pair.at("client")
    JobFolder.create(dataclasses.replace(job_spec(), job_id="0c"), "laptop")
    with pytest.raises(FailureError, match="outside"):
        _store("lab", {"job": "job", "job_id": "/../../x", "path": "job.json", "record": {}})


def test_another_job_of_the_name_that_is_here_stays_as_it_is(pair: Pair) -> None:
    """Of another cluster, say: that a copy arrives in its place would lose it."""
    pair.at("client")
    mine = JobFolder.create(dataclasses.replace(job_spec(), job_id="0c"), "laptop")
    mine.append("events.jsonl", {"type": "mine"})
    mine.close()
    assert pair.refresh() == ["events.jsonl", "results/summary.json", "job.json"], "all of it, though a file is there"
    assert mine.spec().job_id == "0c" and mine.job()["cluster"] == "laptop"
    assert [event["type"] for event in mine.lines("events.jsonl")] == ["mine"] and mine.files("results") == []
    copy = find_record("job.b7")
    assert (
        copy.name == "job.b7" and copy.job()["cluster"] == "lab" and copy.address() == mine.address() | {"job_id": "b7"}
    )
    assert [event["type"] for event in copy.lines("events.jsonl")] == ["submitted"]
    assert find_record("job").spec().job_id == "0c" == find_record("job.0c").spec().job_id
    assert pair.refresh() == ["job.json"], "it is continued there"
    mine.remove()
    assert pair.refresh() == ["job.json"] and find_record("job.b7").name == "job.b7"


def test_a_copy_that_broke_off_before_its_record_came_is_continued_by_the_same_job_alone(pair: Pair) -> None:
    pair.at("head")
    pieces = list(news("lab", {"names": None, "have": {}, "only_records": False, "inputs": False}))
    pair.at("client")
    _store("lab", pieces[0])
    assert not find_record("job").exists() and list(_have(["job"])) == ["b7"]
    _store("lab", pieces[0] | {"job_id": "0c"})
    assert find_record("job.0c").path.is_dir(), "of two copies that are not whole each has its own folder"
    assert pair.refresh() == ["results/summary.json", "job.json"]
    assert find_record("job").spec().job_id == "b7"


def test_a_damaged_record_is_mended_if_it_is_a_copy_of_the_job_and_left_alone_else(pair: Pair) -> None:
    pair.refresh()
    (pair.at("client") / "job" / "job.json").write_text("{")
    pair.refresh()
    assert find_record("job").spec().job_id == "b7"
    (pair.at("client") / "job" / ".job-id").unlink()
    (pair.at("client") / "job" / "job.json").write_text("{")
    pair.refresh()
    assert find_record("job").damage() and find_record("job.b7").spec().job_id == "b7"


def test_a_head_that_tells_no_ids_is_believed_where_the_name_is_its_own(pair: Pair) -> None:
    """One that an older version has brought up, which is to go down: its records must be had."""
    pair.at("head")
    request = {"names": None, "have": {}, "only_records": False, "inputs": False}
    pieces = [{key: value for key, value in piece.items() if key != "job_id"} for piece in news("lab", request)]
    pair.at("client")
    for _ in range(2):
        for piece in pieces:
            _store("lab", Line(piece))
        assert pair.same("events.jsonl") and pair.same("results/summary.json") and pair.same("job.json")
    with pytest.raises(FailureError, match=r"different versions .* expected a message with 'job_id'"):
        _store("other", Line(pieces[0]))
