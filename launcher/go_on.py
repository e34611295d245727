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
        state = _last_known(cluster, name)
        if state.ended:
            say(f"job {name} had ended before: {state}; its results were on the machines that are gone")
            continue
        try:
            send(dataclasses.replace(prepare_resume(name, {}, cluster.name), lost=LOST), wait=True)
        except (UserError, FailureError) as error:
            say(f"! job {name} does not go on: {error}")
        else:
            say(f"job {name} goes on from its newest good checkpoint")


def _last_known(cluster: Cluster, name: str) -> JobState:
    """How the job stood when its machines were lost, as the storage has it; the record here is then the same.

    A record here may be newer or older than the one that the new head starts from, and is copied anew where the storage
    cannot be reached from here, or has a damaged one.
    """
    folder = JobFolder(jobs_folder() / name)
    found = None
    with contextlib.suppress(OSError, ImportError, FailureError):
        found = fetch_record(storage_root(cluster.spec.storage_path), name, replace=True)
    if found is None:
        for file in LINES:
            (folder.path / file).unlink(missing_ok=True)
        return JobState.RUNNING
    state = found.state()
    if not state.ended:  # nothing runs it, and only a job that has ended can be resumed
        found.write_job(found.job() | {"state": JobState.FAILED, "message": LOST})
    return state
