"""`up` and `down`."""

from pathlib import Path

import click

from launcher.cli.console import next_commands, say, seconds
from launcher.errors import UserError


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def up(file: Path) -> None:
    """Bring up the cluster that FILE describes; nothing happens if it is up."""
    from cluster.config_file import load
    from cluster.errors import ClusterConfigError

    try:
        spec = load(file)
    except ClusterConfigError as error:
        raise UserError(str(error)) from error
    from launcher.bringup import up as bring_up
    from launcher.cli.parity_table import parity_table

    done = bring_up(spec, say)
    if done.facts:
        click.echo(parity_table(done.facts, done.differences))
        hosts = f"{done.cluster.spec.num_hosts} host(s) x {spec.devices_per_host} device(s)"
        click.echo(f"\ncluster {spec.name} is READY: {hosts}, {seconds(done.seconds)}")
    else:
        click.echo(f"cluster {spec.name} is up already, since {done.cluster.created}")
    next_commands(
        "spmd-launch workloads", "spmd-launch submit independent-chains", f"spmd-launch status {spec.name}",
        f"spmd-launch down {spec.name}",
    )  # fmt: skip


@click.command()
@click.argument("cluster", metavar="NAME|FILE")
@click.option("--force", is_flag=True, help="End running jobs as CANCELLED.")
@click.option("--purge", is_flag=True, help="Remove everything of ours from its hosts, checkpoints too.")
def down(cluster: str, force: bool, purge: bool) -> None:
    """End a cluster: every process, port and temporary folder. Job records and checkpoints stay."""
    from launcher.bringup import down as bring_down

    name = _name(cluster)
    for line in bring_down(name, force=force, say=say, purge=purge):
        say(line)
    click.echo(
        f"cluster {name} is down; "
        + ("nothing of ours is on its hosts" if purge else "job records and checkpoints stay")
    )
    next_commands("spmd-launch jobs", "spmd-launch results JOB")


def _name(text: str) -> str:
    if not text.endswith((".yaml", ".yml")) and "/" not in text:
        return text
    from cluster.config_file import load
    from cluster.errors import ClusterConfigError

    try:
        return load(Path(text)).name
    except ClusterConfigError as error:
        raise UserError(str(error)) from error
