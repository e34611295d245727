"""`profile`: a profile of the next steps of a job that runs."""

import time
from typing import Any

import click

from launcher.cli.console import next_commands, say
from launcher.cli.jobs import cluster_of
from launcher.cli.results import find_job
from launcher.errors import FailureError, UserError
from launcher.job_folder import JobFolder
from launcher.protocol import Connection

LOOK_PERIOD_S = 0.3


@click.command()
@click.argument("job")
@click.option("--steps", type=click.IntRange(1), default=5, show_default=True, help="How many, at least.")
def profile(job: str, steps: int) -> None:
    """Take a profile of the next steps of JOB on every host, for XProf and TensorBoard.

    It begins with a rank's next report and ends with the first one that many steps later.
    """
    folder = find_job(job)
    if folder.state().ended:
        raise UserError(f"job {job!r} has ended ({folder.state()}); `submit --profile` takes one from the start")
    with Connection(cluster_of(folder).socket) as connection:
        answer = connection.ask({"op": "profile", **folder.address(), "steps": steps})
    session, ranks = answer["session"], answer["ranks"]
    say(f"asked {ranks} rank(s) for {steps} step(s); Ctrl-C leaves them to it")
    first, last = wait_for(job, session, ranks)
    click.echo(f"steps {first} to {last} of {job}, {ranks} rank(s): {folder.path / 'plugins' / 'profile' / session}")
    next_commands(f"xprof --logdir {folder.path}", f"tensorboard --logdir {folder.path}")


def wait_for(job: str, session: str, ranks: int) -> tuple[int, int]:
    """Returns the first and last step of a profile when that of every rank is here.

    Raises:
        FailureError: a rank could not take it, or the job has ended without.
    """
    while True:
        folder = find_job(job)
        ended = folder.state().ended  # before its events are read: none comes later
        found = _events(folder, session)
        if failed := [event for event in found if event["type"] == "profile-failed"]:
            raise FailureError(f"rank {failed[0]['rank']} of job {job!r} took no profile: {failed[0]['why']}")
        if len(found) == ranks:
            return min(event["first"] for event in found), max(event["last"] for event in found)
        if ended:
            raise FailureError(f"job {job!r} has ended, and {ranks - len(found)} of {ranks} ranks took no profile")
        time.sleep(LOOK_PERIOD_S)


def _events(folder: JobFolder, session: str) -> list[dict[str, Any]]:
    return [event for event in folder.lines("events.jsonl") if event.get("session") == session]
