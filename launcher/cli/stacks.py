"""`stacks`: what every thread of every rank of a job is doing now."""

import click

from launcher.cli.console import next_commands
from launcher.cli.jobs import cluster_of
from launcher.cli.results import find_job
from launcher.errors import UserError
from launcher.job_folder import JobFolder
from launcher.protocol import Connection
from launcher.stack_files import read_stacks


@click.command()
@click.argument("job")
def stacks(job: str) -> None:
    """Print the stacks of all ranks of JOB; of one that has ended, those that the watchdog kept."""
    folder = find_job(job)
    if folder.state().ended:
        found = _kept(folder)
    else:
        with Connection(cluster_of(folder).socket) as connection:
            answer = connection.ask({"op": "stacks", **folder.address()})
        found = {f"rank {one['rank']} on host {one['host']}": one["text"] for one in answer["stacks"]}
    for who, text in found.items():
        click.echo(f"=== {who}: {text.rstrip()}\n")
    next_commands(f"spmd-launch logs {job}", f"spmd-launch cancel {job}")


def _kept(folder: JobFolder) -> dict[str, str]:
    attempt, kept = read_stacks(folder)
    if not kept:
        raise UserError(f"job {folder.name!r} has ended ({folder.state()}), and no stacks of it were taken")
    return {f"rank {rank}, kept from attempt {attempt}": text for rank, text in kept.items()}
