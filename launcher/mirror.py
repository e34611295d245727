"""A copy of a job's record beside its checkpoints: a head that is lost with its disk takes no job with it."""

import datetime
import json
from typing import Any

from etils import epath

from launcher.errors import FailureError
from launcher.event_file import EVENT_FILES
from launcher.job_folder import JobFolder, jobs_folder
from workloads.durable import as_path, write_whole

RECORD = "record"
LINES = ("events.jsonl", "metrics.jsonl")


def mirror_record(folder: JobFolder, storage: str) -> None:
    """Copies to the storage what `submit --resume` needs: record, events, metrics, curves and input files.

    Args:
        folder: of the job.
        storage: folder or URL of its checkpoints.

    Raises:
        OSError: the storage cannot be written.
    """
    target = as_path(storage) / RECORD
    target.mkdir(parents=True, exist_ok=True)
    for source in folder.files("inputs"):
        copy = target / source.relative_to(folder.path).as_posix()
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    for curves in folder.path.glob(f"{EVENT_FILES}*"):
        (target / curves.name).write_bytes(curves.read_bytes())
    for name in LINES:
        if (folder.path / name).exists():
            write_whole(target / name, (folder.path / name).read_text())
    write_whole(target / "job.json", (folder.path / "job.json").read_text())  # last: with it the copy counts


def fetch_record(root: str, name: str) -> JobFolder | None:
    """Brings a job's record back from the storage into the state folder; None if there is none.

    Args:
        root: folder or URL below which each job has its own.
        name: of the job; of several that had it, the one that was submitted last.

    Raises:
        FailureError: a copy is damaged, and may be that of the last one.
    """
    base = as_path(root)
    copies = [folder / RECORD for folder in base.glob(f"{name}.*")] if base.exists() else []
    submitted = {copy: _submitted(copy / "job.json", name) for copy in copies if (copy / "job.json").exists()}
    if not submitted:
        return None
    source = max(submitted, key=submitted.__getitem__)
    target = epath.Path(jobs_folder() / name)
    for part in ("logs", "results", "plots"):
        (target / part).mkdir(parents=True, exist_ok=True)
    for file in (source / "inputs").glob("*/*") if (source / "inputs").exists() else ():
        copy = target / "inputs" / file.parent.name / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    for curves in source.glob(f"{EVENT_FILES}*"):
        (target / curves.name).write_bytes(curves.read_bytes())
    for line_file in (*LINES, "job.json"):
        if (source / line_file).exists():
            (target / line_file).write_text((source / line_file).read_text())
    return JobFolder(jobs_folder() / name)


def _submitted(record: epath.Path, name: str) -> datetime.datetime:
    try:
        job: dict[str, Any] = json.loads(record.read_text())
        return datetime.datetime.fromisoformat(job["spec"]["submitted"])
    except (ValueError, KeyError, TypeError) as error:
        raise FailureError(
            f"job {name!r}: the copy of its record in the storage, {record}, is damaged "
            f"({type(error).__name__}: {error}); put it right, or move the job's folder {record.parent.parent} away"
        ) from error
