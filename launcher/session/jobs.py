"""A job as an object: where it stands, and what it has found."""

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.record import Cluster
from launcher.cli.jobs import cluster_of
from launcher.cli.logs import new_lines
from launcher.cli.results import find_job
from launcher.cli.status import job_status
from launcher.errors import FailureError, UserError
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.outputs import read_summary
from launcher.protocol import Connection
from launcher.record_copy import refresh_job
from launcher.snapshots import snapshots

if TYPE_CHECKING:
    import xarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobResult:
    """What a job has found.

    Attributes:
        metrics: headline scalars, units in their names.
        diagnostics: what else the workload tells.
        digest: of the result, equal if and only if every bit is.
        integrity: the verdict on its replicas.
        folder: the job's; `results` and `plots` in it have the files.
    """

    metrics: Mapping[str, float]
    diagnostics: Mapping[str, Any]
    digest: str
    integrity: Mapping[str, Any]
    folder: Path


class Job:
    """A job of a cluster, running or not.

    Args:
        name: of the job.
        cluster: that it is on.
    """

    def __init__(self, name: str, cluster: Cluster):
        self.name = name
        self._cluster = cluster

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {self.state})"

    @property
    def folder(self) -> Path:
        """The job's record, see docs/job-folder.md."""
        return self._folder().path

    @property
    def state(self) -> JobState:
        """Where it is in its life now."""
        return JobState(self.status()["state"])

    def status(self) -> dict[str, Any]:
        """State, attempt, message and ranks, as `spmd-launch status JOB --json` tells them."""
        return job_status(self._folder())

    def wait(self, timeout_s: float | None = None) -> JobState:
        """Waits until the job has ended; returns how.

        Raises:
            TimeoutError: it has not within `timeout_s`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        state = self.state
        if not state.ended:
            for snapshot in snapshots(self._cluster, self.name):
                state = JobState(snapshot["state"])
                if deadline is not None and not state.ended and time.monotonic() > deadline:
                    raise TimeoutError(f"job {self.name} is {state} after {timeout_s:g} s; it goes on")
        return state

    def result(self, timeout_s: float | None = None) -> JobResult:
        """Waits for the job's end; what it has found.

        Raises:
            FailureError: it did not succeed, and why.
            TimeoutError: it has not ended within `timeout_s`.
        """
        state = self.wait(timeout_s)
        folder = self._folder()
        if state is not JobState.SUCCEEDED:
            raise FailureError(f"job {self.name} {state}: {folder.job()['message']}")
        summary = read_summary(folder.path)
        if summary is None:
            raise FailureError(f"job {self.name} has succeeded and left no summary in {folder.path}")
        return JobResult(
            metrics=summary["metrics"],
            diagnostics=summary["diagnostics"],
            digest=summary["result_digest"],
            integrity=summary["integrity"],
            folder=folder.path,
        )

    def metrics(self) -> list[dict[str, Any]]:
        """What the ranks have reported so far: `at` (seconds since the submission), `rank`, `step`, `total`, values."""
        return list(self._folder().lines("metrics.jsonl"))

    def inference_data(self) -> "xarray.DataTree":
        """The draws of an MCMC job, in memory, with ArviZ's groups `posterior` and `sample_stats`.

        Raises:
            UserError: the job has left none.
            FailureError, TimeoutError: as `result`.
        """
        import xarray

        folder = self.result().folder
        files = sorted((folder / "results").glob("*.nc"))
        if not files:
            workload = self._folder().job()["spec"]["workload"]
            raise UserError(f"job {self.name} ({workload}) has left no draws (a file .nc) in {folder / 'results'}")
        with xarray.open_datatree(files[0], engine="h5netcdf") as tree:
            return tree.load()

    def logs(self, rank: int | None = None) -> str:
        """What the ranks of the last attempt have printed so far, each line with its rank.

        Args:
            rank: of this one alone.
        """
        folder = self._folder()
        return "\n".join(new_lines(folder, {}, rank, folder.job().get("attempt", 1)))

    def cancel(self) -> JobState:
        """Ends the job and every process of it; returns how it has ended."""
        folder = self._folder()
        with Connection(cluster_of(folder).socket) as connection:
            return JobState(connection.ask({"op": "cancel", **folder.address()})["state"])

    def _folder(self) -> JobFolder:
        refresh_job(self.name)
        return find_job(self.name)
