"""Jobs of a cluster whose machines are gone: what a client still has of one is kept until it goes on."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.record import Cluster
from launcher import go_on as module
from launcher.errors import FailureError, UserError
from launcher.go_on import go_on
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.mirror import LINES, mirror_record
from launcher.storage import storage_for
from launcher.submission import Prepared
from tests.cluster.test_record import _cluster
from tests.conftest import job_spec

pytestmark = pytest.mark.usefixtures("state_folder")


@pytest.fixture
def pod(tmp_path: Path) -> Cluster:
    """A cluster that is up anew."""
    plain = _cluster("pod")
    return dataclasses.replace(plain, spec=dataclasses.replace(plain.spec, storage_path=str(tmp_path / "storage")))


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    """What this client has of a job that ran on it."""
    folder = JobFolder.create(job_spec(), "pod")
    for name in LINES:
        folder.append(name, {"at": 1.0, "type": "note"})
    folder.close()
    folder.write_job(folder.job() | {"state": JobState.FAILED})
    return folder


def here(job: JobFolder) -> dict[str, list[dict[str, Any]]]:
    return {name: list(job.lines(name)) for name in LINES}


@pytest.mark.parametrize(("by", "error"), [("prepare_resume", UserError("no")), ("send", FailureError("no"))])
@pytest.mark.parametrize("damaged", [False, True])
def test_what_only_this_client_has_stays_where_the_job_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pod: Cluster, job: JobFolder,
    by: str, error: Exception, damaged: bool,
) -> None:  # fmt: skip
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    if damaged:
        copy = tmp_path / "storage" / "job.b7" / "record"
        copy.mkdir(parents=True)
        (copy / "job.json").write_text("{")
    monkeypatch.setattr(module, "prepare_resume", lambda *_: prepared())
    monkeypatch.setattr(module, by, refuse)
    before, said = here(job), list[str]()
    go_on(pod, ["job"], said.append)
    assert said == ["! job job does not go on: no"] and here(job) == before and all(before.values())


@pytest.mark.parametrize("copied", [False, True])
def test_what_a_client_has_of_a_job_that_goes_on_is_as_the_new_head_has_it(
    monkeypatch: pytest.MonkeyPatch, pod: Cluster, job: JobFolder, copied: bool
) -> None:
    if copied:
        job.write_job(job.job() | {"state": JobState.RUNNING})
        mirror_record(job, storage_for(pod.spec.storage_path, job_spec()), set())
    mirrored = here(job)
    for name in LINES:
        job.append(name, {"at": 2.0, "type": "note"})
    job.close()
    monkeypatch.setattr(module, "prepare_resume", lambda *_: prepared())
    monkeypatch.setattr(module, "send", lambda sent, *, wait: {"name": sent.spec.name})
    said: list[str] = []
    go_on(pod, ["job"], said.append)
    assert said == ["job job goes on from its newest good checkpoint"]
    assert here(job) == (mirrored if copied else {name: [] for name in LINES})
    assert job.state() is JobState.FAILED


def test_a_job_that_had_ended_before_is_told_so(pod: Cluster, job: JobFolder) -> None:
    job.write_job(job.job() | {"state": JobState.SUCCEEDED})
    mirror_record(job, storage_for(pod.spec.storage_path, job_spec()), set())
    said: list[str] = []
    go_on(pod, ["job"], said.append)
    assert said == ["job job had ended before: SUCCEEDED; its results were on the machines that are gone"]


def test_another_job_of_the_name_in_the_storage_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch, pod: Cluster, job: JobFolder
) -> None:
    """Of two clusters that share a storage: it was submitted later, and has ended."""
    other = dataclasses.replace(job_spec(submitted="2026-11-22T04:00:00.000+00:00"), job_id="0c")
    copy = JobFolder(job.path)
    before = copy.job()
    copy.write_job(before | {"state": JobState.SUCCEEDED, "spec": other.to_json()})
    mirror_record(copy, storage_for(pod.spec.storage_path, other), set())
    copy.write_job(before | {"state": JobState.RUNNING})
    monkeypatch.setattr(module, "prepare_resume", lambda *_: prepared())
    monkeypatch.setattr(module, "send", lambda sent, *, wait: {"name": sent.spec.name})
    said: list[str] = []
    go_on(pod, ["job"], said.append)
    assert said == ["job job goes on from its newest good checkpoint"] and job.spec().job_id == "b7"


def prepared() -> Prepared:
    """A job that may be sent, which nobody looks at."""
    nothing: Any = SimpleNamespace()
    return Prepared(nothing, job_spec(), nothing, {})
