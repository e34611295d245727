"""`submit`: queue a workload, and watch it unless told not to."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.record import Cluster
from launcher.cli.age import describe_end
from launcher.cli.console import next_commands, say, show_json
from launcher.cli.job_options import (
    max_failures_option,
    max_preemptions_option,
    no_program_barrier_option,
    parse_settings,
    requirements_option,
    watch_launches_option,
)
from launcher.cli.resume_options import resume_options
from launcher.errors import UserError
from launcher.job import JobOptions
from launcher.limits import Reason

if TYPE_CHECKING:
    from launcher.submission import Prepared


@click.command()
@click.argument("workload", required=False)
@click.option("--resume", metavar="JOB", help="Go on with a job that has ended, from its newest good checkpoint.")
@click.option("--cluster", help="Which cluster; may be left out if one is up.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A parameter; see `workloads NAME`.")
@click.option("--seed", type=int, default=JobOptions.seed, show_default=True, help="Of all random numbers.")
@click.option("--name", help="The job's name; by default WORKLOAD-N.")
@click.option("--num-hosts", type=int, help="How many hosts; by default all.")
@click.option(
    "--checkpoint-every",
    type=click.IntRange(0),
    metavar="N",
    help="Steps between checkpoints; 0: only at the end; by default every minute, for at most 5 % of the run time.",
)
@click.option(
    "--keep", type=click.IntRange(1), default=JobOptions.keep, show_default=True, help="Newest checkpoints to keep."
)
@click.option(
    "--check-every",
    type=click.IntRange(0),
    default=JobOptions.check_every,
    metavar="N",
    help="Steps between replica checks; 0: by cost.",
)
@max_failures_option(JobOptions.max_failures)
@max_preemptions_option
@click.option(
    "--on-divergence",
    type=click.Choice(["restore", "replay", "stop"]),
    default=JobOptions.on_divergence,
    show_default=True,
    help="When copies of an array differ: go back to the last good checkpoint; there, also compute the step again to "
    "tell which of two copies was wrong; or end.",
)
@no_program_barrier_option
@watch_launches_option
@click.option(
    "--profile",
    metavar="STEPS",
    help="Profile these steps on every host: FIRST:LAST, as 20:25, or so many after the first report.",
)
@click.option(
    "--inject",
    "faults",
    multiple=True,
    metavar="FAULT",
    help="Make something fail, as 'kill rank=1 step=20', to see the job recover: in the first attempt, "
    "or in attempt=N, or any.",
)
@requirements_option
@click.option("--detach", is_flag=True, help="Do not wait for the job.")
@click.option("--no-wait", is_flag=True, help="Refuse instead of queueing if hosts are not free.")
@click.option("--json", "as_json", is_flag=True, help="Print the job's end as JSON.")
def submit(
    workload: str | None, resume: str | None, cluster: str | None, settings: tuple[str, ...], name: str | None,
    num_hosts: int | None, faults: tuple[str, ...], detach: bool, no_wait: bool, as_json: bool,
    requirements: Path | None, no_program_barrier: bool, **options: Any,
) -> None:  # fmt: skip
    """Run WORKLOAD on all hosts of a cluster, or go on with a job that has ended."""
    from launcher.profile_steps import ProfileSteps
    from launcher.submission import Request, describe, prepare, prepare_resume

    if options["profile"] is not None:
        ProfileSteps.parse(options["profile"])
    if (workload is None) == (resume is None):
        raise UserError("say which WORKLOAD to run (see spmd-launch workloads), or --resume JOB")
    prepared = (
        prepare_resume(
            resume, parse_settings(settings), cluster, num_hosts, resume_options(click.get_current_context())
        )
        if resume is not None
        else prepare(
            Request(
                workload=str(workload),
                settings=parse_settings(settings),
                cluster=cluster,
                name=name,
                num_hosts=num_hosts,
                faults=faults,
                requirements=requirements,
                options=JobOptions(program_barrier=not no_program_barrier, **options),
            )
        )
    )
    what = f"{prepared.spec.workload} ({describe(prepared.spec)})"
    announce(prepared, what, detach=detach, no_wait=no_wait, as_json=as_json)


def announce(prepared: "Prepared", what: str, *, detach: bool, no_wait: bool, as_json: bool) -> None:
    """Sends a job, and follows it unless told not to; ends this command with the job's exit code.

    Args:
        prepared: the job.
        what: it is, for one line.
        detach, no_wait, as_json: as the command line said.
    """
    from launcher.record_copy import refresh
    from launcher.submission import send

    answer = send(prepared, wait=not no_wait)
    job = answer["name"]
    if not as_json:
        click.echo(f"job {job}: {what} on {prepared.cluster.name}", err=True)
        if answer["limits"]["ends_by"] == Reason.LIFETIME:  # the job will not outlive it
            for line in describe_end(answer["limits"]):
                click.echo(line, err=True)
    refresh(prepared.cluster, [job], only_records=True)
    if detach:
        if as_json:
            show_json(answer)
        else:
            click.echo(f"{job} {answer['state']}")
            _next_for_running(job)
        return
    sys.exit(watch_to_end(prepared.cluster, job, as_json, with_output=prepared.spec.command is not None))


def watch_to_end(cluster: Cluster, job: str, as_json: bool, with_output: bool = False) -> int:
    """Follows a job, showing what its ranks print if that is wanted; returns the exit code of the command."""
    from launcher.cli.live import follow
    from launcher.cli.logs import new_lines
    from launcher.cli.results import find_job, show_results
    from launcher.host_watch import HostWatch
    from launcher.lost_head import HeadLostError, bring_back
    from launcher.snapshots import ENDED

    shown: dict[str, int] = {}

    watch = HostWatch(find_job(job).spec().max_preemptions)

    def said(snapshot: dict[str, Any]) -> Iterable[str]:
        if snapshot["state"] not in ENDED:
            watch.hear(cluster, snapshot.get("lost", []))
        return [*watch.news(), *(new_lines(find_job(job), shown) if with_output else ())]

    final = None
    try:
        while final is None:
            try:
                final = follow(cluster, job, to_stderr=as_json, said=said)
            except HeadLostError as lost:
                watch.end(say)
                cluster = bring_back(cluster, job, str(lost), say)
            finally:
                watch.end(say)
    except KeyboardInterrupt:
        click.echo(f"\ndetached: job {job} goes on")
        _next_for_running(job)
        return 130
    folder = find_job(job)
    show_results(folder, as_json=as_json)
    if not as_json:
        next_commands(f"spmd-launch results {job} --output DIR", f"spmd-launch logs {job}", "spmd-launch jobs")
    return 0 if final["state"] == "SUCCEEDED" else 1


def _next_for_running(job: str) -> None:
    next_commands(f"spmd-launch status {job} --watch", f"spmd-launch logs {job} --follow", f"spmd-launch cancel {job}")
