"""`run`: any command on every host, as one SPMD program if it is a Python script that uses JAX."""

import shlex
from pathlib import Path
from typing import Any

import click

from launcher.cli.job_options import (
    max_failures_option,
    max_preemptions_option,
    no_program_barrier_option,
    requirements_option,
    watch_launches_option,
)
from launcher.cli.submit import announce
from launcher.job import JobOptions


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENT]...")
@click.option("--cluster", help="Which cluster; may be left out if one is up.")
@click.option("--num-hosts", type=int, help="How many hosts; by default all.")
@click.option("--name", help="The job's name; by default run-N.")
@click.option(
    "--env", multiple=True, metavar="KEY[=VALUE]", help="A variable; without VALUE that of here, put on no record."
)
@requirements_option
@click.option("--toolkit", is_flag=True, help="Scripts can import our SPMD toolkit: `from workloads import spmd`.")
@max_failures_option(0, "Restarts after failures; a script goes on from where it has saved.")
@max_preemptions_option
@no_program_barrier_option
@watch_launches_option
@click.option("--detach", is_flag=True, help="Do not wait for the job.")
@click.option("--no-wait", is_flag=True, help="Refuse instead of queueing if hosts are not free.")
@click.option("--json", "as_json", is_flag=True, help="Print the job's end as JSON.")
def run(
    words: tuple[str, ...], cluster: str | None, num_hosts: int | None, name: str | None, env: tuple[str, ...],
    requirements: Path | None, toolkit: bool, no_program_barrier: bool, detach: bool, no_wait: bool, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Run COMMAND on every host, in a copy of this folder: `spmd-launch run -- python train.py`.

    A script that calls `jax.distributed.initialize()` finds the others by itself. What .gitignore names stays here.
    """
    from launcher.run_submission import prepare_run

    prepared = prepare_run(
        words,
        folder=Path.cwd(),
        env=env,
        options=JobOptions(program_barrier=not no_program_barrier, **options),
        cluster_name=cluster,
        name=name,
        num_hosts=num_hosts,
        requirements=requirements,
        toolkit=toolkit,
    )
    announce(prepared, shlex.join(words), detach=detach, no_wait=no_wait, as_json=as_json)
