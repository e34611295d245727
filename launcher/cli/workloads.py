"""`workloads`: what can be submitted, with every parameter."""

import textwrap
from pathlib import Path

import click

from launcher.cli.console import next_commands, show_json, table
from launcher.cli.job_options import requirements_option
from launcher.errors import UserError
from launcher.requirements import refuse_for_shipped
from workloads.errors import ConfigError
from workloads.params import ParamInfo, describe
from workloads.registry import WORKLOADS, find
from workloads.user import parse_target


@click.command()
@click.argument("name", required=False)
@click.option("--cluster", help="Which cluster looks at a workload of yours; may be left out if one is up.")
@requirements_option
@click.option("--json", "as_json", is_flag=True)
def workloads(name: str | None, cluster: str | None, requirements: Path | None, as_json: bool) -> None:
    """List the workloads, or every parameter of one: type, default, meaning; of ./FILE.py:FUNCTION too."""
    if name is None:
        if as_json:
            show_json([{"name": spec.name, "summary": spec.summary} for spec in WORKLOADS.values()])
            return
        click.echo(table(["workload", ""], [[spec.name, spec.summary] for spec in WORKLOADS.values()]))
        next_commands(*(f"spmd-launch workloads {spec.name}" for spec in WORKLOADS.values()))
        return
    found = _user_workload(name, cluster, requirements) if parse_target(name) else _shipped_workload(name, requirements)
    summary, params = found
    if as_json:
        show_json([vars(param) if hasattr(param, "__dict__") else param for param in params])
        return
    click.echo(f"{name}: {summary}\n")
    for param in params:
        allowed = f", one of {' | '.join(param.choices)}" if param.choices else ""
        kind = "file" if param.is_file else param.type
        click.echo(f"  {param.name} = {param.default}  ({kind}{allowed})")
        if param.help:
            click.echo(textwrap.fill(param.help, 78, initial_indent="      ", subsequent_indent="      "))
    next_commands(f"spmd-launch submit {name}" + (f" --set {params[0].name}={params[0].default}" if params else ""))


def _shipped_workload(name: str, requirements: Path | None) -> tuple[str, list[ParamInfo]]:
    refuse_for_shipped(name, requirements)
    try:
        spec = find(name)
    except ConfigError as error:
        raise UserError(str(error)) from error
    return spec.summary, describe(spec.config_class())


def _user_workload(name: str, cluster: str | None, requirements: Path | None) -> tuple[str, list[ParamInfo]]:
    from launcher.user_submission import look_at_user_workload

    return "a workload of yours", look_at_user_workload(name, cluster, requirements)
