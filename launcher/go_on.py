"""Jobs of a cluster whose machines are gone: on new machines they go on from what the storage has of them."""

import contextlib
import dataclasses
from collections.abc import Sequence

from cluster.provider import Say
from cluster.record import Cluster
from launcher.errors import FailureError, UserError
from launcher.job import JobState
from launcher.job_folder import JobFolder, jobs_folder
from launcher.mirror import LINES, fetch_record
from launcher.storage import storage_root
from launcher.submission import prepare_resume, send

LOST = "its machines were lost"


def go_on(cluster: Cluster, jobs: Sequence[str], say: Say) -> None:
    """Submits lost jobs again, those apart that had ended before their machines were lost.

    Args:
        cluster: that is up anew.
        jobs: their names, in the order in which they were submitted.
        say: receives a line for each.
    """
    for name in jobs:
        copy = _copy_of(cluster, name)
        if copy is not None and copy.state().ended:
            say(f"job {name} had ended before: {copy.state()}; its results were on the machines that are gone")
            continue
        if copy is not None:  # nothing runs it, and only a job that has ended can be resumed
            copy.write_job(copy.job() | {"state": JobState.FAILED, "message": LOST})
        try:
            send(dataclasses.replace(prepare_resume(name, {}, cluster.name), lost=LOST), wait=True)
        except (UserError, FailureError) as error:
            say(f"! job {name} does not go on: {error}")
            continue
        if copy is None:
            _forget_lines(name)
        say(f"job {name} goes on from its newest good checkpoint")


def _copy_of(cluster: Cluster, name: str) -> JobFolder | None:
    """The job's record as the storage has it, from which the new head starts; the one here is then the same.

    None where the storage cannot be reached from here, or has none, or a damaged one.
    """
    with contextlib.suppress(OSError, ImportError, FailureError):
        return fetch_record(storage_root(cluster.spec.storage_path), name, replace=True)
    return None


def _forget_lines(name: str) -> None:
    """Has what is here of a job copied anew: it may be newer or older than what the new head has started from.

    Only once that head has the job: until then what is here may be all that there is.
    """
    for file in LINES:
        (jobs_folder() / name / file).unlink(missing_ok=True)
