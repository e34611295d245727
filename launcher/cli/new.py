"""`new`: a small workload to start from, with its test."""

from pathlib import Path

import click

from launcher.cli.console import next_commands
from launcher.new_workload import write_workload


@click.command()
@click.argument("name")
def new(name: str) -> None:
    """Write NAME.py and test_NAME.py: a small workload to start from, and its test."""
    workload, test = (path.name for path in write_workload(name, Path.cwd()))
    click.echo(f"wrote {workload}, a workload, and {test}, which runs it in one process")
    next_commands(
        f"python -m pytest {test}", f"spmd-launch submit ./{workload}:run", f"spmd-launch workloads ./{workload}:run"
    )
