"""`up` and `down`."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import click

from cluster.config_file import load
from cluster.errors import ClusterError
from cluster.record import cluster_names, load_spec
from cluster.spec import ClusterSpec
from launcher.cli.console import next_commands, say, seconds, show_json
from launcher.cli.plan_text import plan_text
from launcher.dry_run import Plan, plan_down, plan_up
from launcher.errors import UserError

_dry_run = click.option("--dry-run", is_flag=True, help="Show what would be done, and its price; do nothing.")
_json = click.option("--json", "as_json", is_flag=True, help="With --dry-run.")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@_dry_run
@_json
@click.option("--yes", is_flag=True, help="Do not ask before hosts are made that cost money.")
def up(file: Path, dry_run: bool, as_json: bool, yes: bool) -> None:
    """Bring up the cluster that FILE describes; of one that is up, bring back the hosts that it has lost."""
    spec = load(file)
    if _shown(dry_run, as_json, lambda: plan_up(spec)):
        return
    if spec.provider.is_paid and not yes:
        _ask(spec)
    from launcher.bringup import up as bring_up
    from launcher.cli.parity_table import parity_table
    from launcher.lost_head import describe_health

    done = bring_up(spec, say)
    if done.facts:
        click.echo(parity_table(done.facts, done.differences))
        hosts = f"{done.cluster.spec.num_hosts} host(s) x {spec.devices_per_host} device(s)"
        click.echo(f"\ncluster {spec.name} is READY: {hosts}, {seconds(done.seconds)}")
    elif done.mended:
        hosts = f"has {', '.join(done.mended)} again"
        click.echo(f"cluster {spec.name}, up since {done.cluster.created}, {hosts}: {seconds(done.seconds)}")
    else:
        click.echo(f"cluster {spec.name} is up already, since {done.cluster.created}")
    for line in describe_health(done.cluster):
        say(f"! {line}")
    next_commands(
        "spmd-launch workloads", "spmd-launch submit independent-chains", f"spmd-launch status {spec.name}",
        f"spmd-launch down {spec.name}",
    )  # fmt: skip


@click.command()
@click.argument("cluster", metavar="NAME|FILE")
@click.option("--force", is_flag=True, help="End running jobs as CANCELLED.")
@click.option("--purge", is_flag=True, help="Remove all of ours from its hosts, that too; not from emulated ones.")
@_dry_run
@_json
@click.option("--leftover", is_flag=True, help="NAME is a thing in a cloud that `list` calls left over: delete it.")
@click.option("--project", metavar="PROJECT", help="With --leftover: as for `list`.")
def down(
    cluster: str, force: bool, purge: bool, dry_run: bool, as_json: bool, leftover: bool, project: str | None
) -> None:
    """End a cluster: every process, port and temporary folder.

    Job records, checkpoints and what scripts have saved stay.
    """
    if project and not leftover:
        raise UserError("--project belongs to --leftover")
    if leftover:
        _delete_leftover(cluster, project, force, dry_run=dry_run or as_json)
        return
    name = _name(cluster)
    if _shown(dry_run, as_json, lambda: plan_down(name, purge=purge)):
        return
    from launcher.bringup import down as bring_down

    kept = _kept(name)
    lines = bring_down(name, force=force, say=say, purge=purge)
    for line in lines:
        say(line)
    if purge:
        kept = "what may still be on its hosts is told above" if lines else "nothing of ours is on its hosts"
    click.echo(f"cluster {name} is down; {kept}")
    next_commands("spmd-launch jobs", "spmd-launch results JOB")


def _delete_leftover(name: str, project: str | None, force: bool, *, dry_run: bool) -> None:
    from launcher.leftover_search import delete_leftover

    if dry_run:
        raise UserError("--dry-run is for clusters: `spmd-launch list --all` shows what is left over")
    deleted = delete_leftover(name, project, force=force)
    click.echo(f"{deleted.kind} {deleted.name} in {deleted.where} is deleted")
    next_commands("spmd-launch list --all")


def _kept(name: str) -> str:
    """What stays of a cluster that goes down."""
    with contextlib.suppress(ClusterError):  # another version has made it
        spec = load_spec(name) if name in cluster_names() else None
        if spec is not None and spec.provider.is_paid and not spec.storage_outlives_hosts:
            return "job records stay; checkpoints and what scripts have saved do where the machines do"
    return "job records, checkpoints and what scripts have saved stay"


def _name(text: str) -> str:
    if not text.endswith((".yaml", ".yml")) and "/" not in text:
        return text
    return load(Path(text)).name


def _shown(dry_run: bool, as_json: bool, plan: Callable[[], Plan]) -> bool:
    """Whether the plan alone was asked for, and shown."""
    if not dry_run:
        if as_json:
            raise UserError("--json is for --dry-run")
        return False
    made = plan()
    if as_json:
        show_json(made.to_json())
    else:
        click.echo(f"{plan_text(made)}\nNothing has been done.")
    return True


def _ask(spec: ClusterSpec) -> None:
    """Has a person agree to what costs money.

    Raises:
        UserError: nobody has; nothing has been begun.
    """
    plan = plan_up(spec)
    if not plan.changes_something:
        return
    say(plan_text(plan))
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError("this costs money, and there is no terminal to ask on: --yes agrees to it; nothing was begun")
    if not click.confirm("Go ahead?", err=True):
        raise UserError("not agreed to; nothing was begun")
