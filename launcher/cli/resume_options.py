"""Options of `submit` beside `--resume JOB`: what may be another for a job that goes on, and why the rest may not."""

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from launcher.errors import UserError

KEPT = {
    "name": "a job that is resumed keeps its name",
    "seed": "a job that is resumed keeps its seed: its numbers would be those of another",
    "faults": "faults belong to the job as it was submitted; give it those of later attempts there (attempt=N)",
    "profile": "give it to `spmd-launch profile JOB --steps N` when it runs",
    "requirements": "a job that is resumed has the environment that it had",
}
CHANGEABLE = (
    "checkpoint_every", "keep", "check_every", "max_failures", "max_preemptions", "on_divergence", "watch_launches",
)  # fmt: skip


def resume_options(context: click.Context) -> Mapping[str, Any]:
    """The fields of `JobOptions` that the command line gives anew.

    Args:
        context: of `submit --resume JOB`.

    Raises:
        UserError: an option was given that such a job cannot take.
    """
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    for parameter in context.command.params:
        if parameter.name in KEPT and parameter.name in given:
            raise UserError(f"{parameter.opts[0]}: {KEPT[parameter.name]}")
    changed = {name: context.params[name] for name in CHANGEABLE if name in given}
    return changed | ({"program_barrier": False} if "no_program_barrier" in given else {})
