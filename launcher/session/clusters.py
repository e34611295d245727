"""A cluster that is up, as an object: submit jobs to it, look at it, have a gang on it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.record import Cluster
from launcher.choose import choose_cluster, choose_layout, choose_name
from launcher.cli.status import cluster_status
from launcher.errors import UserError
from launcher.inputs import Inputs
from launcher.interactive import WORKLOAD
from launcher.job import JobOptions
from launcher.job_folder import all_jobs
from launcher.record_copy import refresh
from launcher.record_names import find_record
from launcher.sending import our_code
from launcher.session.functions import settings_of, target_of
from launcher.session.gangs import Gang
from launcher.session.jobs import Job
from launcher.submission import Prepared, Request, new_spec, prepare, send
from launcher.user_submission import pack_user_folder

OPTIONS = {field.name for field in dataclasses.fields(JobOptions)}


def connect(cluster: str | None = None) -> "ClusterSession":
    """A cluster that is up, for use in a `with` block, which ends the gangs that were made in it.

    Args:
        cluster: its name; None: the only one that is up.

    Raises:
        UserError: it is not up; `spmd-launch up FILE` brings one up.
        FailureError: its head cannot be reached.
    """
    return ClusterSession(choose_cluster(cluster))


class ClusterSession:
    """A cluster that is up; made by `connect`.

    Args:
        cluster: its record.
    """

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._gangs: list[Gang] = []

    def __enter__(self) -> "ClusterSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ClusterSession({self.name!r})"

    @property
    def name(self) -> str:
        return self._cluster.name

    def close(self) -> None:
        """Ends the gangs that were made here; jobs go on."""
        while self._gangs:
            self._gangs.pop().close()

    def status(self) -> dict[str, Any]:
        """State, hosts and jobs, as `spmd-launch status NAME --json` tells them."""
        return cluster_status(self.name)

    def jobs(self) -> list[Job]:
        """All jobs on record that were submitted to this cluster, oldest first."""
        refresh(self._cluster, only_records=True)
        return [Job(folder.name, self._cluster) for folder in all_jobs() if folder.job()["cluster"] == self.name]

    def job(self, name: str) -> Job:
        """A job by its name, or NAME.ID; of several of this cluster that had the name, the last one.

        Raises:
            UserError: only another cluster's job has that name.
        """
        refresh(self._cluster, [name], only_records=True)
        own = [job for job in all_jobs() if job.job()["cluster"] == self.name and job.job()["name"] == name]
        if own:
            return Job(own[-1].name, self._cluster)
        other = find_record(name)
        if other.exists() and (cluster := other.job()["cluster"]) != self.name:
            raise UserError(f"cluster {self.name!r} has no job {name!r} on record; that of this name is of {cluster!r}")
        return Job(name, self._cluster)

    def submit(
        self,
        workload: str | Callable[..., Any],
        config: Any = None,
        *,
        name: str | None = None,
        num_hosts: int | None = None,
        wait: bool = True,
        faults: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Job:
        """Submits a job and returns at once.

        Args:
            workload: by name, as `./my_file.py:run` or `my_pkg.module:run`, or a function of a file of this folder.
            config: an object of the workload's config; or its parameters one by one.
            name: of the job; by default WORKLOAD-N.
            num_hosts: by default all.
            wait: queue behind other jobs; else be refused if hosts are not free.
            faults: as `submit --inject` takes them.
            settings: parameters whose names mean something else here.
            params: parameters of the workload, and options of `submit`: seed, checkpoint_every, max_failures...

        Raises:
            UserError: with what was given and what would do; nothing has been started.
        """
        options = JobOptions(**{key: value for key, value in params.items() if key in OPTIONS})
        chosen = {key: value for key, value in params.items() if key not in OPTIONS} | dict(settings or {})
        request = Request(
            workload=workload if isinstance(workload, str) else target_of(workload, Path.cwd()),
            settings=settings_of(config, chosen),
            options=options,
            cluster=self.name,
            name=name,
            num_hosts=num_hosts,
            faults=faults,
        )
        return self.job(send(prepare(request), wait=wait)["name"])

    def gang(
        self,
        *,
        folder: str | Path | None = ".",
        num_hosts: int | None = None,
        name: str | None = None,
        wait: bool = True,
        show_output: bool = True,
        x64: bool = False,
        precision: str = "default",
        program_barrier: bool = True,
        watch_launches: bool = True,
    ) -> Gang:
        """One JAX process on each host, kept for calls; a job like others, which holds its hosts.

        Args:
            folder: whose modules the functions may import; it travels as for `submit`. None: none.
            num_hosts: by default all.
            name: of its job; by default gang-N.
            wait: queue behind other jobs; else be refused if hosts are not free.
            show_output: whether to print what the ranks print.
            x64, precision: of JAX on the ranks: 64-bit floats; of matrix products (default, high, highest).
            program_barrier: whether ranks compare programs before they run them.
            watch_launches: whether they compare which programs they have launched; 0.1 to 0.2 ms a launch.

        Raises:
            UserError: with what was given and what would do; nothing has been started.
            GangEndedError: it has ended before it was ready, and why.
        """
        config = {"x64": x64, "precision": precision, "watch_launches": watch_launches}
        options = JobOptions(max_failures=0, max_preemptions=0, program_barrier=program_barrier)
        names = iter([name])  # when it is made again, it is another job

        def prepared() -> Prepared:
            cluster = choose_cluster(self.name)  # the way to a remote head may have to be opened again
            layout, code = choose_layout(cluster, num_hosts), our_code(cluster)
            files, paths = pack_user_folder(Path(folder)) if folder is not None else ({}, {})
            inputs = Inputs(config=config, settings=settings_of(None, config), files=files, paths=paths)
            job_name = choose_name(next(names, None), WORKLOAD)
            spec = new_spec(job_name, WORKLOAD, inputs, layout, code, options)
            return Prepared(cluster, spec, code, inputs.paths)

        gang = Gang(prepared, wait=wait, show_output=show_output)
        self._gangs.append(gang)
        return gang
