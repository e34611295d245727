"""The job's folder is the record: a stable format, read without the cluster, kept until it is pruned.

job.json        the spec, state, attempt, hosts, ranks, message, result; replaced as a whole
events.jsonl    what happened, one object a line: `at` (seconds on the supervisor's monotonic clock since the job
                was submitted), `type`, and `rank` where a rank said it
metrics.jsonl   what ranks reported: `at`, `rank`, `step`, `total`, and the metrics by name
logs/           attempt-N.rank-K.log: standard output and error of that process
results/        files that rank 0 left as results, and of a workload summary.json
summary.json    of a command
plots/          and as pictures
events.out.tfevents.*   what rank 0 reported, for TensorBoard: `launcher.event_file`
plugins/        profiles, for XProf and TensorBoard: `launcher.profiles`
inputs/         SHA256/NAME: the files that the job was given, so that it can be resumed when its cluster is gone
"""

import contextlib
import datetime
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cluster.record import home, write_json
from launcher.errors import FailureError
from launcher.growing_files import GrowingFiles
from launcher.job import InputFile, JobSpec, JobState
from launcher.whole_folder import made_whole

RECORD = "job.json"
FORMAT = 1
MUST_HAVE = ("name", "cluster", "state", "spec")


def jobs_folder() -> Path:
    return home() / "jobs"


class JobFolder:
    """Reads and writes one job's folder. The supervisor alone writes.

    Args:
        path: the folder.

    Attributes:
        growing: its files that only grow.
    """

    def __init__(self, path: Path):
        self.path = path
        self.growing = GrowingFiles(path)

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, spec: JobSpec, cluster: str) -> "JobFolder":
        """Makes the folder of a new job, which appears with its record or not at all.

        Raises:
            FileExistsError: there is a job of that name, or something else.
            OSError: it cannot be written.
        """
        folder = cls(jobs_folder() / spec.name)
        if folder.path.exists():
            raise FileExistsError(folder.path)
        with new_folder(spec.name) as partial:
            cls(partial).write_job(
                {"format": FORMAT, "name": spec.name, "cluster": cluster, "state": JobState.QUEUED,
                 "spec": spec.to_json()}
            )  # fmt: skip
        if not folder.exists() or folder.spec().job_id != spec.job_id:  # another one was made at the same time
            raise FileExistsError(folder.path)
        return folder

    @classmethod
    def reopen(cls, spec: JobSpec, cluster: str) -> "JobFolder":
        """The folder of a job that has ended and is to go on, maybe on another cluster; the record is continued."""
        folder = cls(jobs_folder() / spec.name)
        record = folder.job()
        folder.write_job(record | {"cluster": cluster, "state": JobState.QUEUED, "message": "", "spec": spec.to_json()})
        return folder

    # -- writing

    def keep_input(self, source: Path, file: InputFile) -> None:
        """Keeps an input file with the record, in place of whatever is there: a hard link where the disk allows."""
        target = self.path / "inputs" / file.sha256 / file.name
        if target.exists() and target.samefile(source):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path / f".input.{os.getpid()}"
        partial.unlink(missing_ok=True)
        try:
            os.link(source, partial)
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, partial)
        partial.replace(target)

    def write_job(self, value: dict[str, Any]) -> None:
        write_json(self.path / RECORD, value)

    def append(self, file: str, value: dict[str, Any]) -> None:
        """Adds one line to `events.jsonl` or `metrics.jsonl`, as `GrowingFiles.append` does."""
        self.append_text(file, json.dumps(value, separators=(",", ":")) + "\n")

    def append_text(self, file: str, text: str) -> None:
        self.growing.append(file, text)

    def close(self) -> None:
        self.growing.close()

    def remove(self) -> None:
        shutil.rmtree(self.path)

    # -- reading

    def exists(self) -> bool:
        return (self.path / RECORD).exists()

    def job(self) -> dict[str, Any]:
        """What `job.json` holds.

        Raises:
            FailureError: it is damaged.
        """
        try:
            value: dict[str, Any] = json.loads((self.path / RECORD).read_text())
        except ValueError as error:  # no JSON, or no text at all
            raise self._damaged(str(error)) from error
        return value

    def whole(self) -> dict[str, Any]:
        """As `job`.

        Raises:
            FailureError: it is damaged, or lacks what every record has.
        """
        job = self.job()
        if lacks := [key for key in MUST_HAVE if key not in job] if isinstance(job, dict) else MUST_HAVE:
            raise self._damaged(f"it lacks {', '.join(lacks)}")
        return job

    def damage(self) -> str:
        """What is wrong with the record, or ''."""
        try:
            self.whole()
        except FailureError as error:
            return str(error)
        return ""

    def _damaged(self, why: str) -> FailureError:
        remove = f"put it right, or remove the job: `spmd-launch jobs --prune {self.name}`"
        return FailureError(f"job {self.name!r}: its record {self.path / 'job.json'} is damaged ({why}); {remove}")

    def address(self) -> dict[str, str]:
        """How a request to a supervisor names this job: with its id, as its name may be another job's there by now."""
        job = self.job()
        return {"name": job["name"], "job_id": job["spec"]["job_id"]}

    def spec(self) -> JobSpec:
        return JobSpec.from_json(self.job()["spec"])

    def state(self) -> JobState:
        return JobState(self.job()["state"])

    def lines(self, file: str) -> Iterator[dict[str, Any]]:
        """The objects of `events.jsonl` or `metrics.jsonl`; a line that its writer could not end is skipped."""
        for line in self.growing.lines(file):
            try:
                value: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            yield value

    def files(self, part: str) -> list[Path]:
        """Files below `results` or `plots` or `logs`, sorted."""
        return sorted(path for path in (self.path / part).rglob("*") if path.is_file())


@contextlib.contextmanager
def new_folder(name: str) -> Iterator[Path]:
    """Yields a folder to fill, which becomes that of a job of this name at the end, unless there is one by then."""
    parent = jobs_folder()
    parent.mkdir(parents=True, exist_ok=True)
    with made_whole(parent / name) as partial:
        partial.chmod(parent.stat().st_mode & 0o777)  # who may look into the others may look into this one
        for part in ("logs", "results", "plots"):
            (partial / part).mkdir()
        yield partial


def all_jobs() -> list[JobFolder]:
    """Every job in the state folder, oldest first, but for damaged ones: one of those must not hide the others."""
    submitted: dict[JobFolder, datetime.datetime] = {}
    for job in _folders():
        with contextlib.suppress(FailureError):
            submitted[job] = datetime.datetime.fromisoformat(job.whole()["spec"]["submitted"])
    return sorted(submitted, key=submitted.__getitem__)


def damaged_jobs() -> list[str]:
    """Of each job whose record is damaged, what is wrong with it."""
    return [damage for job in sorted(_folders(), key=lambda job: job.name) if (damage := job.damage())]


def _folders() -> list[JobFolder]:
    folder = jobs_folder()
    found = [JobFolder(path) for path in folder.iterdir()] if folder.is_dir() else []
    return [job for job in found if job.exists() and not job.name.startswith(".")]  # one that is being made


def unfinished_jobs(cluster: str) -> list[str]:
    """Names of the jobs that are alive on a cluster, as far as the records here tell, oldest first."""
    found = [(folder.name, folder.job()) for folder in all_jobs()]
    return [name for name, job in found if job["cluster"] == cluster and not JobState(job["state"]).ended]


def settle_lost_jobs(jobs: Iterable[JobFolder], cluster: str, why: str) -> list[str]:
    """Marks jobs FAILED that were alive on a cluster that is not: their record must not say RUNNING for ever.

    Returns:
        Their names.
    """
    settled = []
    for folder in jobs:
        job = folder.job()
        if job["cluster"] == cluster and not JobState(job["state"]).ended:
            folder.write_job(job | {"state": JobState.FAILED, "message": why})
            settled.append(folder.name)
    return settled
