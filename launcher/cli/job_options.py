"""Options that commands which start jobs have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from launcher.errors import UserError
from launcher.job import JobOptions

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def max_failures_option(default: int, words: str = "Restarts after failures.") -> Decorator:
    return click.option("--max-failures", type=click.IntRange(0), default=default, show_default=True, help=words)


max_preemptions_option = click.option(
    "--max-preemptions",
    type=click.IntRange(0),
    default=JobOptions.max_preemptions,
    show_default=True,
    help="Restarts after lost hosts.",
)
watch_launches_option = click.option(
    "--watch-launches",
    is_flag=True,
    help="Record and compare every launch of your own `jit` too; 0.1 to 0.2 ms a launch.",
)
requirements_option = click.option(
    "--requirements",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Run in an environment of this file's packages, which every host makes once.",
)
no_program_barrier_option = click.option(
    "--no-program-barrier", is_flag=True, help="Do not compare the ranks' programs before they run."
)


def parse_settings(pairs: tuple[str, ...]) -> dict[str, str]:
    """What `--set KEY=VALUE` gave.

    Raises:
        UserError: no KEY=VALUE, or one given twice.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"--set {pair!r}: is not KEY=VALUE")
        if key in settings:
            raise UserError(f"--set {key}: given twice, as {settings[key]!r} and {value!r}")
        settings[key] = value
    return settings
