"""A client's copy of the records that a remote head writes: every command reads its own folder, as on a laptop.

The client tells which files it has, with size and time; the supervisor sends what is new, `job.json` last, so that a
job that is said to have ended has its results here. Files that only grow are continued, others replaced as a whole.
"""

import base64
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cluster.record import Cluster, running_clusters, write_json
from launcher.errors import FailureError
from launcher.event_file import EVENT_FILES
from launcher.job_folder import JobFolder, all_jobs, jobs_folder
from launcher.protocol import Connection, Message
from launcher.went_down import went_down

PIECE = 4 * 2**20
RECORD = "job.json"
INPUTS = "inputs/"  # a client has brought them itself, and asks for them only to resume
Stats = Mapping[str, Mapping[str, tuple[int, int]]]  # {job: {path: (size, mtime_ns)}}


# -- on the client


def refresh(
    cluster: Cluster, names: list[str] | None = None, *, only_records: bool = False, inputs: bool = False
) -> None:
    """Copies what is new on a remote cluster; nothing where this machine is the head.

    Args:
        cluster: that is up.
        names: of jobs; None: all jobs of the cluster.
        only_records: only what jobs are and how they stand; not their logs and results.
        inputs: also the files that jobs were given.

    Raises:
        FailureError: the supervisor does not answer.
    """
    if not cluster.is_remote:
        return
    known = names if names is not None else [job.name for job in all_jobs()]
    request = {"op": "record", "names": names, "have": {name: _stats(jobs_folder() / name) for name in known},
               "only_records": only_records, "inputs": inputs}  # fmt: skip
    try:
        with Connection(cluster.socket) as connection:
            answer = connection.ask(request)
            _store(answer)
            for answer in connection.lines():
                _store(answer)
    except FailureError:
        if went_down(cluster) is None:  # else nobody can answer, and how its jobs ended is known
            raise


def refresh_job(name: str) -> None:
    """Copies what is new of one job, from the remote cluster that it is on, or from whichever has it."""
    folder = JobFolder(jobs_folder() / name)
    if folder.exists():
        cluster = Cluster.load(folder.job()["cluster"])
        clusters = [cluster] if cluster is not None and cluster.is_remote and cluster.alive() else []
    else:
        clusters = [cluster for cluster in running_clusters() if cluster.is_remote]
    for cluster in clusters:
        refresh(cluster, [name])


def _store(answer: Message) -> None:
    """Writes one piece of a file."""
    if "job" not in answer:
        return
    folder = jobs_folder() / _safe(answer["job"])
    if answer["path"] == RECORD:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RECORD, answer["record"])
        return
    target = folder / _safe(answer["path"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("r+b" if answer["offset"] else "wb") as file:
        file.seek(answer["offset"])
        file.write(base64.b64decode(answer["data"]))
        file.truncate()
    os.utime(target, ns=(answer["mtime_ns"], answer["mtime_ns"]))


def _safe(path: str) -> str:
    """A path that stays below the folder it is put in, whatever a head says."""
    if path.startswith("/") or ".." in Path(path).parts:
        raise FailureError(f"the head's record names a file outside its job: {path!r}")
    return path


# -- on the head


def news(cluster: str, request: Message) -> Iterator[Message]:
    """What a client lacks of the jobs of a cluster, piece by piece, as `refresh` asks for it."""
    names, have = request["names"], request["have"]
    for folder in all_jobs():
        job = folder.job()
        if job["cluster"] != cluster or (names is not None and folder.name not in names):
            continue
        if not request["only_records"]:
            yield from _files(folder, have.get(folder.name, {}), request["inputs"])
        yield {"job": folder.name, "path": RECORD, "record": job}


def _files(folder: JobFolder, have: Mapping[str, tuple[int, int]], inputs: bool) -> Iterator[Message]:
    for path, (size, mtime_ns) in _stats(folder.path).items():
        their_size, their_time = have.get(path, (0, 0))
        if (size, mtime_ns) == (their_size, their_time) or path == RECORD or (path.startswith(INPUTS) and not inputs):
            continue
        offset = their_size if _grows(path) and their_size <= size else 0
        with (folder.path / path).open("rb") as file:
            file.seek(offset)
            while True:
                data = file.read(min(PIECE, size - offset))
                yield {"job": folder.name, "path": path, "offset": offset, "mtime_ns": mtime_ns,
                       "data": base64.b64encode(data).decode()}  # fmt: skip
                offset += len(data)
                if not data or offset >= size:
                    break


def _grows(path: str) -> bool:
    return path.endswith((".jsonl", ".log")) or path.startswith(EVENT_FILES)


def _stats(folder: Path) -> dict[str, tuple[int, int]]:
    """`{path: (size, mtime_ns)}` of all files of a job."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.name.startswith("."):
            state: Any = path.stat()
            found[name] = (state.st_size, state.st_mtime_ns)
    return found
