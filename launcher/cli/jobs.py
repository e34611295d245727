"""`jobs` and `cancel`."""

import time

import click

from cluster.record import Cluster, running_clusters
from launcher.cli.console import next_commands, say, show_json, table
from launcher.cli.results import find_job
from launcher.errors import FailureError, UserError
from launcher.job import JobState
from launcher.job_folder import JobFolder, all_jobs, damaged_jobs
from launcher.protocol import Connection
from launcher.record_copy import refresh


@click.command()
@click.argument("names", nargs=-1, metavar="[JOB]...")
@click.option("--prune", is_flag=True, help="Remove the folders of these jobs, or of all ended ones that are old.")
@click.option(
    "--older-than", type=float, default=7.0, show_default=True, metavar="DAYS", help="With --prune and no JOB."
)
@click.option("--json", "as_json", is_flag=True)
def jobs(names: tuple[str, ...], prune: bool, older_than: float, as_json: bool) -> None:
    """List all jobs in the state folder, ended clusters' too."""
    if prune:
        _prune([find_job(name) for name in names], older_than)
        return
    for cluster in running_clusters():
        refresh(cluster, only_records=True)
    for damage in damaged_jobs() if not names else ():
        say(f"! {damage}")
    listed = [job.job() | {"name": job.name} for job in ([find_job(name) for name in names] or all_jobs())]
    if as_json:
        show_json(
            [{key: job.get(key) for key in ("name", "state", "cluster", "message", "spec", "times")} for job in listed]
        )
        return
    rows = [
        [
            job["name"],
            job["state"],
            job["spec"]["workload"],
            job["cluster"],
            job["spec"]["submitted"][:19].replace("T", " "),
        ]
        for job in listed
    ]
    click.echo(table(["job", "state", "workload", "cluster", "submitted"], rows) if rows else "no jobs yet")
    next_commands(
        f"spmd-launch results {listed[-1]['name']}" if listed else "spmd-launch up FILE", "spmd-launch jobs --prune"
    )


def _prune(chosen: list[JobFolder], older_than_days: float) -> None:
    alive = [job.name for job in chosen if not job.damage() and not job.state().ended]
    if alive:
        raise UserError(f"not ended, so not removed: {', '.join(alive)}; `spmd-launch cancel {alive[0]}` first")
    limit = time.time() - older_than_days * 86400
    old = [job for job in all_jobs() if job.state().ended and (job.path / "job.json").stat().st_mtime < limit]
    for job in chosen or old:
        if not job.damage():
            _prune_on_head(job)
        job.remove()
        click.echo(f"removed {job.name}")
    if not chosen and not old:
        click.echo(f"no ended job is older than {older_than_days:g} days")


def _prune_on_head(job: JobFolder) -> None:
    """Of a remote cluster the head has the record, of which ours is a copy; one that is down keeps it until `up`."""
    cluster = Cluster.load(job.job()["cluster"])
    if cluster is not None and cluster.is_remote:
        if problem := cluster.problem():
            raise FailureError(f"the head of cluster {cluster.name!r} has the record of job {job.name!r}: {problem}")
        with Connection(cluster.socket) as connection:
            connection.ask({"op": "prune", **job.address()})


@click.command()
@click.argument("job")
def cancel(job: str) -> None:
    """End JOB and every process of it."""
    folder = find_job(job)
    if folder.state().ended:
        raise UserError(f"job {job!r} has ended already: {folder.state()}")
    with Connection(cluster_of(folder).socket) as connection:
        answer = connection.ask({"op": "cancel", **folder.address()})
    click.echo(f"job {job} {answer['state']}" + ("" if answer["state"] == JobState.CANCELLED else ": it ended first"))
    next_commands(f"spmd-launch logs {job}", "spmd-launch jobs")


def cluster_of(folder: JobFolder) -> Cluster:
    """The running cluster that a job is on.

    Raises:
        UserError: that cluster is gone.
    """
    name = folder.job()["cluster"]
    cluster = Cluster.load(name)
    if cluster is None or not cluster.alive():
        hint = f"`spmd-launch down {name}` settles its record"
        raise UserError(f"job {folder.name!r} was on cluster {name!r}, which is not up; {hint}")
    return cluster
