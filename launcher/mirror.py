"""A copy of a job's record beside its checkpoints: a head that is lost with its disk takes no job with it."""

import datetime
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from etils import epath

from launcher.errors import FailureError
from launcher.event_file import EVENT_FILES
from launcher.growing_files import EVENTS, METRICS
from launcher.job import InputFile
from launcher.job_folder import RECORD, JobFolder, jobs_folder, new_folder
from launcher.record_names import owner, split
from workloads.durable import as_path, write_whole

COPY = "record"
LINES = (EVENTS, METRICS)


def mirror_record(folder: JobFolder, storage: str, good: set[str]) -> None:
    """Copies to the storage what `submit --resume` needs: record, events, metrics, curves and input files.

    Args:
        folder: of the job.
        storage: folder or URL of its checkpoints.
        good: input files whose copies are known to be good, which is added to; others are compared, and mended.

    Raises:
        Exception: the storage cannot be written; which, its client decides.
    """
    target = as_path(storage) / COPY
    target.mkdir(parents=True, exist_ok=True)
    for source in folder.files("inputs"):
        name = source.relative_to(folder.path).as_posix()
        if name not in good:
            _mirror_input(source, target / name)
            good.add(name)
    for curves in folder.path.glob(f"{EVENT_FILES}*"):
        write_whole(target / curves.name, curves.read_bytes())
    for name in LINES:
        if (folder.path / name).exists():
            write_whole(target / name, (folder.path / name).read_bytes())
    write_whole(target / RECORD, (folder.path / RECORD).read_bytes())  # last: with it the copy counts


def _mirror_input(source: Path, copy: epath.Path) -> None:
    if not copy.exists() or _sha256(copy.read_bytes()) != source.parent.name:
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_whole(copy, source.read_bytes())


def fetch_record(root: str, name: str, job_id: str = "", *, replace: bool = False) -> JobFolder | None:
    """Brings a job's record back from the storage into the state folder, whole or not at all; None if there is none.

    A record that is here is never another job's afterwards.

    Input files that are not what they were are left out: whoever needs one misses it by name.

    Args:
        root: folder or URL below which each job has its own.
        name: of the job, or NAME.ID; of several that had it, the one that was submitted last.
        job_id: of the one that is meant; '': the one that has a record here, or as the name says.
        replace: put it over a record that is here, whose logs and results stay; else that one stays as it is.

    Raises:
        FailureError: a copy is damaged, and may be that of the last one.
        OSError: it cannot be read, or written here.
    """
    base, here = as_path(root), JobFolder(jobs_folder() / name)
    plain, of_name = split(name)
    job_id = job_id or of_name or (here.spec().job_id if here.exists() else owner(here.path))
    copies = [folder / COPY for folder in base.glob(f"{plain}.{job_id or '*'}")] if base.exists() else []
    submitted = {copy: _submitted(copy / RECORD, name) for copy in copies if (copy / RECORD).exists()}
    if not submitted:
        return None
    source = max(submitted, key=submitted.__getitem__)
    with new_folder(name) as partial:
        _fetch(source, partial)
        if here.path.exists() and (replace or not here.exists()):  # a copy that was interrupted has no record
            _put_over(partial, here.path)
    return here


def _fetch(source: epath.Path, target: Path) -> None:
    for file in (source / "inputs").glob("*/*") if (source / "inputs").exists() else ():
        data = file.read_bytes()
        if _sha256(data) == file.parent.name:
            copy = target / "inputs" / file.parent.name / file.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
    for file in (*source.glob(f"{EVENT_FILES}*"), *(source / name for name in (*LINES, RECORD))):
        if file.exists():
            (target / file.name).write_bytes(file.read_bytes())


def read_input(storage: str, file: InputFile) -> bytes | None:
    """An input file as the copy of its job's record has it; None where that has none, or not what it was.

    Args:
        storage: folder or URL of the job's checkpoints.
        file: that is wanted.

    Raises:
        OSError: it cannot be read.
        ImportError: what reads such a storage is not installed here.
    """
    copy = as_path(storage) / COPY / "inputs" / file.sha256 / file.name
    data = copy.read_bytes() if copy.exists() else b""
    return data if _sha256(data) == file.sha256 else None


def _put_over(new: Path, old: Path) -> None:
    """Moves the files of one folder over those of another, the record last."""
    files = sorted((path for path in new.rglob("*") if path.is_file()), key=lambda path: path == new / RECORD)
    for path in files:
        target = old / path.relative_to(new)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _submitted(record: epath.Path, name: str) -> datetime.datetime:
    try:
        job: dict[str, Any] = json.loads(record.read_text())
        return datetime.datetime.fromisoformat(job["spec"]["submitted"])
    except (ValueError, KeyError, TypeError) as error:
        raise FailureError(
            f"job {name!r}: the copy of its record in the storage, {record}, is damaged "
            f"({type(error).__name__}: {error}); put it right, or move the job's folder {record.parent.parent} away"
        ) from error
