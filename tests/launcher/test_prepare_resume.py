"""A job that is resumed is given what it was given at first, wherever that lies. A cluster that is a record, no Ray."""

import contextlib
import dataclasses
import hashlib
from pathlib import Path

import pytest

from cluster.place_code import Code
from cluster.record import Cluster, cluster_folder
from launcher import ended_job as ended
from launcher import submission
from launcher.errors import FailureError, UserError
from launcher.job import InputFile, JobOptions, JobState
from launcher.job_folder import JobFolder
from launcher.mirror import mirror_record
from launcher.storage import storage_for
from launcher.submission import Prepared, Request, prepare, prepare_resume
from tests.cluster.test_record import _cluster, _save
from tests.conftest import job_spec

DATA = InputFile(name="data.txt", sha256=hashlib.sha256(b"input").hexdigest(), num_bytes=5)


@pytest.fixture(autouse=True)
def laptop(state_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster to go on on, which is up as far as a client looks."""
    monkeypatch.setattr(submission, "our_code", lambda cluster: Code("c0de", b""))
    cluster = _cluster("laptop")
    _save(cluster)
    return cluster


class Client:
    """One with a copy of the record of a job that ran on a remote cluster `pod`, and so without its input file.

    Args:
        folder: for the storage, which has a copy of the whole record.
        state: of the job, as far as it is known here.
    """

    def __init__(self, folder: Path, state: JobState = JobState.CANCELLED):
        spec = dataclasses.replace(job_spec(), workload="transformer", files={"data": DATA})
        storage = storage_for(str(folder / "storage"), spec)
        self.job = JobFolder.create(spec, "pod")
        self.job.write_job(self.job.job() | {"state": state, "storage": storage})
        self.file = self.job.path / "inputs" / DATA.sha256 / DATA.name
        self.copy = Path(storage) / "record" / self.file.relative_to(self.job.path)
        (folder / "source").write_bytes(b"input")
        self.job.keep_input(folder / "source", DATA)
        mirror_record(self.job, storage, set())
        self.file.unlink()

    def resume(self, **settings: str) -> Prepared:
        return prepare_resume("job", settings, "laptop")


def test_files_of_a_job_whose_cluster_is_gone_come_from_the_storage(tmp_path: Path) -> None:
    client = Client(tmp_path)
    prepared = client.resume()
    assert prepared.spec.files == {"data": DATA} and prepared.files[DATA.sha256].read_bytes() == b"input"
    client.copy.unlink()
    assert client.resume().spec.files == {"data": DATA}, "they are kept here then"


@pytest.mark.parametrize("content", [b"in", None])
def test_a_file_that_nobody_has_is_named_with_where_it_was_looked_for(tmp_path: Path, content: bytes | None) -> None:
    client = Client(tmp_path)
    client.copy.unlink()
    if content is not None:
        client.copy.write_bytes(content)
    with pytest.raises(UserError) as raised:
        client.resume()
    assert str(raised.value) == (
        f"--resume job: the record has not the data that the job was given: {client.file} should have sha256 "
        f"{DATA.sha256[:16]}, and has nothing, and no good copy can be read from here in {tmp_path}/storage/job.b7; "
        "put it there, or give it anew: --set data=FILE"
    )


def test_a_file_that_is_given_anew_is_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_bytes(b"other")
    client = Client(tmp_path)
    prepared = client.resume(data=str(tmp_path / "other.txt"))
    assert prepared.spec.files["data"].name == "other.txt" and not client.file.exists()


def test_files_of_a_job_whose_own_cluster_is_up_come_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(_cluster("pod"))
    client = Client(tmp_path, JobState.RUNNING)  # as it was when this client looked last
    client.copy.unlink()
    asked: list[str] = []

    def refresh(cluster: Cluster, names: list[str], *, inputs: bool) -> None:
        asked.append(cluster.name)
        assert names == ["job"] and inputs
        if cluster.name == "pod":
            client.job.keep_input(tmp_path / "source", DATA)
            client.job.write_job(client.job.job() | {"state": JobState.CANCELLED})

    monkeypatch.setattr(ended, "refresh", refresh)
    assert client.resume().spec.files == {"data": DATA} and asked == ["laptop", "pod"]
    assert client.resume().spec.files == {"data": DATA} and asked == ["laptop", "pod", "laptop"]


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.CANCELLED])
def test_a_cluster_of_its_own_that_does_not_answer_is_done_without_unless_the_job_may_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: JobState
) -> None:
    _save(_cluster("pod"))
    client = Client(tmp_path, state)

    def refresh(cluster: Cluster, names: list[str], *, inputs: bool) -> None:
        if cluster.name == "pod":
            raise FailureError("the cluster's supervisor does not answer")

    monkeypatch.setattr(ended, "refresh", refresh)
    runs = state is JobState.RUNNING
    with pytest.raises(UserError, match="the job is RUNNING; only one") if runs else contextlib.nullcontext():
        assert client.resume().spec.files == {"data": DATA}


def test_a_job_that_runs_as_far_as_is_known_is_resumed_once_its_cluster_is_gone(tmp_path: Path) -> None:
    client = Client(tmp_path, JobState.RUNNING)
    assert not cluster_folder("pod").exists() and client.resume().spec.files == {"data": DATA}


@pytest.mark.parametrize("text", ["host:/nfs/corpus.txt", "host:~/corpus.txt", "gs://bucket/corpus.txt", "host:HERE"])
def test_a_file_on_the_hosts_is_read_there_again_whatever_lies_here(tmp_path: Path, text: str) -> None:
    (tmp_path / "corpus.txt").write_text("another one, of the client's")
    text = text.replace("HERE", str(tmp_path / "corpus.txt"))
    request = Request(workload="transformer", settings={"data": text, "steps": "5"}, options=JobOptions(), name="job")
    first = prepare(dataclasses.replace(request, cluster="laptop")).spec
    assert first.settings["data"] == text.removeprefix("host:"), "as it is on record, and as hosts are told"
    folder = JobFolder.create(first, "laptop")
    folder.write_job(folder.job() | {"state": JobState.FAILED})
    again = prepare_resume("job", {"steps": "9"}, "laptop").spec
    assert again.settings == {**first.settings, "steps": "9"} and again.files == first.files == {}
    assert again.config == {**first.config, "steps": 9}
