"""A client's copy of the records that a remote head writes: every command reads its own folder, as on a laptop.

The client tells which files it has, with size and time; the supervisor sends what is new, `job.json` last, so that a
job that is said to have ended has its results here. Files that only grow are continued, others replaced as a whole.
Both speak of a job by its id: what comes of one is never put into the record of another of its name
(`launcher.record_names`).
"""

import base64
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cluster.record import Cluster, running_clusters, write_json
from launcher.errors import FailureError, NoAnswerError
from launcher.event_file import EVENT_FILES
from launcher.job_folder import RECORD, JobFolder, all_jobs, jobs_folder
from launcher.protocol import Connection, Message
from launcher.record_names import MARK, find_record, owner, record_name, split
from launcher.went_down import went_down

PIECE = 4 * 2**20
INPUTS = "inputs/"  # a client has brought them itself, and asks for them only to resume
Stats = dict[str, tuple[int, int]]  # {path: (size, mtime_ns)}


# -- on the client


def refresh(
    cluster: Cluster, names: list[str] | None = None, *, only_records: bool = False, inputs: bool = False
) -> None:
    """Copies what is new on a remote cluster; nothing where this machine is the head.

    Args:
        cluster: that is up.
        names: of jobs, or NAME.ID; None: all jobs of the cluster.
        only_records: only what jobs are and how they stand; not their logs and results.
        inputs: also the files that jobs were given.

    Raises:
        FailureError: the supervisor does not answer in full: what has come is kept, and continued next time.
    """
    if not cluster.is_remote:
        return
    if names is not None:
        names = [split(name)[0] for name in names]
    request = {"op": "record", "names": names, "have": _have(names), "only_records": only_records, "inputs": inputs}
    last = ""
    try:
        with Connection(cluster.socket) as connection:
            for answer in connection.ask_all(request):
                _store(cluster.name, answer)
                last = f"{answer['path']} of job {answer['job']}"
    except FailureError as error:
        if went_down(cluster) is not None:  # nobody can answer, and how its jobs ended is known
            return
        if last and isinstance(error, NoAnswerError):
            raise NoAnswerError(f"{error}; its jobs' records came as far as {last}") from error
        raise


def refresh_job(name: str) -> None:
    """Copies what is new of one job, from the remote cluster that it is on, or from whichever has it."""
    folder = find_record(name)
    if folder.exists():
        cluster = Cluster.load(folder.job()["cluster"])
        clusters = [cluster] if cluster is not None and cluster.is_remote and cluster.alive() else []
    else:
        clusters = [cluster for cluster in running_clusters() if cluster.is_remote]
    for cluster in clusters:
        refresh(cluster, [name])


def _have(names: list[str] | None) -> dict[str, Stats]:
    """What is here of jobs of these names, by job id."""
    parent = jobs_folder()
    folders = [folder for folder in parent.iterdir() if not folder.name.startswith(".")] if parent.is_dir() else []
    wanted = [folder for folder in folders if names is None or split(folder.name)[0] in names]
    return {job_id: _stats(folder) for folder in wanted if (job_id := owner(folder))}


def _store(cluster: str, answer: Message) -> None:
    """Writes one piece of a file of a job of that cluster."""
    path, folder = _safe(answer["path"]), _folder(cluster, answer)
    if path == RECORD:
        write_json(folder / RECORD, answer["record"])
        return
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("r+b" if answer["offset"] else "wb") as file:
        file.seek(answer["offset"])
        file.write(base64.b64decode(answer["data"]))
        file.truncate()
    os.utime(target, ns=(answer["mtime_ns"], answer["mtime_ns"]))


def _folder(cluster: str, answer: Message) -> Path:
    """Where the record of a job is put, which is made if there is none.

    A head that an older version has brought up tells no ids: it is to go down with its records copied all the same.
    """
    name = _safe(answer["job"])
    plain = JobFolder(jobs_folder() / name)
    if "job_id" not in answer and (not plain.exists() or plain.job()["cluster"] == cluster):
        plain.path.mkdir(parents=True, exist_ok=True)
        return plain.path
    job_id = answer["job_id"]
    _safe(f"{name}.{job_id}")
    folder = jobs_folder() / record_name(name, job_id)
    if not owner(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).write_text(job_id)
    return folder


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
        if job["cluster"] != cluster or (names is not None and job["name"] not in names):
            continue
        named = {"job": job["name"], "job_id": job["spec"]["job_id"]}
        if not request["only_records"]:
            for piece in _files(folder, have.get(job["spec"]["job_id"], {}), request["inputs"]):
                yield named | piece
        yield named | {"path": RECORD, "record": job}


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
                yield {"path": path, "offset": offset, "mtime_ns": mtime_ns, "data": base64.b64encode(data).decode()}
                offset += len(data)
                if not data or offset >= size:
                    break


def _grows(path: str) -> bool:
    return path.endswith((".jsonl", ".log")) or path.startswith(EVENT_FILES)


def _stats(folder: Path) -> Stats:
    """Of all files of a job."""
    found: Stats = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.name.startswith("."):
            state: Any = path.stat()
            found[name] = (state.st_size, state.st_mtime_ns)
    return found
