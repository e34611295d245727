"""Which record is which job's. A name can be used again, on another cluster or after `jobs --prune`; an id never is.

A record is called as its job. Where another job has that name on this machine already, a copy that arrives is called
NAME.ID, as the job's folder in the storage is, and every command takes that in place of the name. What is there is
never renamed: it may be written just now.
"""

import contextlib
import re
from pathlib import Path

from launcher.errors import FailureError
from launcher.job import JobSpec, valid_name
from launcher.job_folder import RECORD, JobFolder, jobs_folder

MARK = ".job-id"  # in a copy: whose it is, until its record has come
UNKNOWN = "?"


def split(text: str) -> tuple[str, str]:
    """A job's name and its id, which is '' where only the name is given."""
    name, _, job_id = text.partition(".")
    return name, job_id


def is_valid(text: str) -> bool:
    """Whether a record can be called so."""
    name, job_id = split(text)
    return valid_name(name) and (text == name or re.fullmatch(r"[0-9a-f]+", job_id) is not None)


def find_record(text: str) -> JobFolder:
    """The record that a name or NAME.ID means; whether there is one, `exists` tells.

    Args:
        text: as a user gave it.
    """
    name, job_id = split(text)
    plain = jobs_folder() / name
    if job_id and not (jobs_folder() / text).exists() and owner(plain) == job_id:
        return JobFolder(plain)
    return JobFolder(jobs_folder() / text)


def record_name(name: str, job_id: str) -> str:
    """What the record of a job is called here, or would be.

    Args:
        name, job_id: of the job.
    """
    exact = f"{name}.{job_id}"
    if (jobs_folder() / exact).exists() or owner(jobs_folder() / name) not in ("", job_id):
        return exact
    return name


def is_used(name: str) -> bool:
    """Whether a record here is that of a job of this name, whatever the record is called."""
    return (jobs_folder() / name).exists() or any(jobs_folder().glob(f"{name}.*"))


def address(text: str) -> dict[str, str]:
    """As `JobFolder.address`, also of a job whose record is not here yet: then it may lack the id, and be any's."""
    if (record := find_record(text)).exists():
        return record.address()
    name, job_id = split(text)
    return {"name": name, "job_id": job_id}


def owner(folder: Path) -> str:
    """The id of the job whose record, or copy that is not whole yet, is in a folder.

    Returns:
        '' if there is neither; UNKNOWN of a record that is damaged.
    """
    record = JobFolder(folder)
    with contextlib.suppress(FailureError, KeyError, OSError):
        return str(record.whole()["spec"]["job_id"])
    with contextlib.suppress(OSError):
        return (folder / MARK).read_text()
    return UNKNOWN if (folder / RECORD).exists() else ""


def describe(spec: JobSpec) -> str:
    """A job so that it is not taken for another of its name."""
    return f"{spec.name}.{spec.job_id}, submitted {spec.submitted}"
