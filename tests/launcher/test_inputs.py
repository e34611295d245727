"""What a job is given, and has been given: a file that is not what it was is never taken for it."""

import dataclasses
import hashlib
from pathlib import Path

import pytest

from launcher.errors import UserError
from launcher.inputs import kept_inputs
from launcher.job import InputFile, JobSpec
from launcher.job_folder import JobFolder
from tests.conftest import job_spec

pytestmark = pytest.mark.usefixtures("state_folder")

DIGEST = hashlib.sha256(b"input").hexdigest()


def job_with(param: str) -> tuple[JobFolder, JobSpec, Path]:
    """A job that was given a file, and where its record has that."""
    spec = dataclasses.replace(job_spec(), files={param: InputFile(name="a.txt", sha256=DIGEST, num_bytes=5)})
    folder = JobFolder.create(spec, "laptop")
    path = folder.path / "inputs" / DIGEST / "a.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"input")
    return folder, spec, path


def test_a_file_that_is_what_it_was_is_taken_from_the_record() -> None:
    folder, spec, path = job_with("corpus")
    assert kept_inputs(folder, spec, ()) == {"corpus": path}


@pytest.mark.parametrize("content", [b"in", None])
def test_one_that_is_not_is_named_unless_it_is_given_anew(content: bytes | None) -> None:
    folder, spec, path = job_with("corpus")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    found = "nothing" if content is None else hashlib.sha256(content).hexdigest()[:16]
    with pytest.raises(UserError) as raised:
        kept_inputs(folder, spec, ())
    assert str(raised.value) == (
        f"--resume job: the record has not the corpus that the job was given: {path} should have "
        f"sha256 {DIGEST[:16]}, and has {found}; put it there, or give it anew: --set corpus=FILE"
    )
    assert kept_inputs(folder, spec, {"corpus"}) == {"corpus": path}
