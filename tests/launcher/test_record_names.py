"""Which record a name means, and what it may be called. Copies of remote records: `test_record_copy`."""

import dataclasses
from pathlib import Path

import pytest

from cluster.farewell import Farewell
from launcher.job_folder import JobFolder, jobs_folder
from launcher.record_names import UNKNOWN, address, find_record, is_valid, owner, record_name
from tests.conftest import job_spec
from tests.nasty import nasty

pytestmark = pytest.mark.usefixtures("state_folder")

OTHER = dataclasses.replace(job_spec(), job_id="0c")


def test_a_record_is_called_as_its_job_or_with_its_id() -> None:
    assert all(is_valid(text) for text in ("job", "job.b7", "job-1.0123456789ab"))
    assert not [
        text for text in ("", ".", "job.", ".b7", "job.b7.b7", "job.B7", "job./x", "job.b7\n", "..") if is_valid(text)
    ]
    assert not [text for text in nasty(2000) if is_valid(text) and (Path(text).name != text or text.startswith("."))]


def test_the_first_job_of_a_name_has_it_and_others_are_found_by_their_id() -> None:
    assert record_name("job", "b7") == "job" and owner(jobs_folder() / "job") == ""
    mine = JobFolder.create(job_spec(), "laptop")
    assert record_name("job", "b7") == "job" and record_name("job", "0c") == "job.0c"
    assert find_record("job").path == find_record("job.b7").path == mine.path
    assert not find_record("job.0c").exists()
    (mine.path / "job.json").write_text("{")
    assert owner(mine.path) == UNKNOWN and record_name("job", "b7") == "job.b7", "whose it was nobody can tell"


def test_a_request_says_which_job_is_meant_as_far_as_that_is_known_here() -> None:
    assert address("job") == {"name": "job", "job_id": ""} and address("job.0c") == {"name": "job", "job_id": "0c"}
    JobFolder.create(job_spec(), "laptop")
    assert address("job") == address("job.b7") == {"name": "job", "job_id": "b7"}


def test_the_last_words_of_a_cluster_are_about_its_own_job_of_a_name() -> None:
    end = {"state": "CANCELLED", "message": "m"}
    said = Farewell(name="lab", cluster_id="c1", ended="2026-11-22T08:25:08+00:00", why="after 5s without a job",
                    jobs={"job": end | {"job_id": "b7"}, "old": end})  # fmt: skip
    assert said.end_of("job", "b7") == said.end_of("job", "") == said.end_of("old", "0c") == end
    assert said.end_of("job", OTHER.job_id) == said.end_of("none", "b7") == {}
