"""`workloads`: what can be submitted, with every parameter."""

import textwrap
from pathlib import Path

import click

from launcher.cli.console import next_commands, show_json, table
from launcher.cli.job_options import requirements_option
from launcher.requirements import refuse_for_shipped
from workloads.installed import installed_workloads, name_clashes
from workloads.params import ParamInfo, describe
from workloads.registry import WORKLOADS
from workloads.target import parse_target


@click.command()
@click.argument("name", required=False)
@click.option("--cluster", help="Which cluster looks at a workload of yours; may be left out if one is up.")
@requirements_option
@click.option("--json", "as_json", is_flag=True)
def workloads(name: str | None, cluster: str | None, requirements: Path | None, as_json: bool) -> None:
    """List the workloads, or every parameter of one: type, default, meaning; of ./FILE.py:FUNCTION too."""
    if name is None:
        _list(as_json)
        return
    summary, params = _look(name, cluster, requirements)
    if as_json:
        show_json([vars(param) if hasattr(param, "__dict__") else param for param in params])
        return
    click.echo(f"{name}: {summary}\n")
    for param in params:
        allowed = f", one of {' | '.join(param.choices)}" if param.choices else ""
        allowed += ", or ./FILE.py:FUNCTION" if param.is_function else ""
        kind = "file" if param.is_file else param.type
        default = "(must be set)" if param.is_required else param.default
        click.echo(f"  {param.name} = {default}  ({kind}{allowed})")
        if param.help:
            click.echo(textwrap.fill(param.help, 78, initial_indent="      ", subsequent_indent="      "))
    shown = [param for param in params if param.is_required] or params[:1]
    settings = [f" --set {param.name}={'...' if param.is_required else param.default}" for param in shown]
    next_commands(f"spmd-launch submit {name}" + "".join(settings))


def _list(as_json: bool) -> None:
    installed = [one for one in installed_workloads() if one.name not in WORKLOADS]
    if as_json:
        shipped = [{"name": spec.name, "summary": spec.summary} for spec in WORKLOADS.values()]
        others = [{"name": one.name, "summary": one.function, "package": one.package} for one in installed]
        show_json([*shipped, *others])
        return
    listed = {spec.name: spec.summary for spec in WORKLOADS.values()}
    listed |= {one.name: f"{one.function}, of {one.package}" for one in installed}
    click.echo(table(["workload", ""], [[name, text] for name, text in listed.items()]))
    for clash in name_clashes(list(WORKLOADS)):
        click.echo(textwrap.fill(clash, 78, initial_indent="! ", subsequent_indent="  "))
    next_commands(*(f"spmd-launch workloads {name}" for name in listed))


def _look(name: str, cluster: str | None, requirements: Path | None) -> tuple[str, list[ParamInfo]]:
    """What a workload is, in a line, and its parameters; those of code that is not ours are told by a host."""
    if parse_target(name) is None:
        refuse_for_shipped(name, requirements)
    if name in WORKLOADS:
        return WORKLOADS[name].summary, describe(WORKLOADS[name].config_class())
    from launcher.user_submission import look_at_user_workload, require_installed

    if parse_target(name) is not None:
        return "a workload of yours", look_at_user_workload(name, cluster, requirements)
    installed = require_installed(name)
    return f"{installed.function}, of {installed.package}", look_at_user_workload(name, cluster, None)
