"""`list`: one line a cluster; with --all also what clouds have of ours that belongs to none."""

import concurrent.futures
import dataclasses
import sys
from typing import Any

import click

from cluster.errors import ClusterError
from cluster.farewell import known_names
from launcher.cli.age import short
from launcher.cli.console import next_commands, show_json, table
from launcher.cli.status import cluster_status
from launcher.errors import UserError
from launcher.leftover_search import Search, search


@click.command()
@click.option("--all", "everywhere", is_flag=True, help="Also ask clouds for what belongs to no cluster known here.")
@click.option("--project", metavar="PROJECT", help="With --all: a Google Cloud project to ask besides those used.")
@click.option("--json", "as_json", is_flag=True)
def list_clusters(everywhere: bool, project: str | None, as_json: bool) -> None:
    """List all clusters that are known here, with their age and cost."""
    if project and not everywhere:
        raise UserError("--project belongs to --all")
    clusters = summaries()
    seen = search(project) if everywhere else None
    if as_json:
        _show_json(clusters, seen)
    else:
        _show(clusters, seen)
    sys.exit(1 if seen and seen.failures else 0)


def summaries() -> list[dict[str, Any]]:
    """Each cluster in a few words; all are asked at once, as one that cannot be reached takes its time."""
    names = known_names()
    with concurrent.futures.ThreadPoolExecutor(max(1, len(names))) as pool:
        return list(pool.map(_summary, names))


def _summary(name: str) -> dict[str, Any]:
    try:
        status = cluster_status(name)
    except ClusterError as error:  # another version's, of which the others need not suffer
        status = {"name": name, "state": "UNKNOWN", "message": str(error)}
    spec = status.get("spec")
    return {
        "name": status["name"],
        "provider": spec["provider"]["type"] if spec else None,
        "hosts": spec["num_hosts"] + spec["spares"] if spec else None,
        "state": status["state"],
        "age_s": status.get("age_s"),
        "cost": status.get("cost"),
        "message": status.get("message", ""),
    }


def _show(clusters: list[dict[str, Any]], seen: Search | None) -> None:
    rows = [
        [
            cluster["name"],
            cluster["provider"] or "-",
            f"{cluster['hosts'] or '-'}",
            cluster["state"],
            "-" if cluster["age_s"] is None else short(cluster["age_s"]),
            _cost(cluster["cost"]),
        ]
        for cluster in clusters
    ]
    headers = ["cluster", "provider", "hosts", "state", "age", "cost"]
    click.echo(table(headers, rows) if rows else "no cluster is known here")
    for cluster in clusters:
        if cluster["message"]:
            click.echo(f"  {cluster['name']}: {cluster['message']}")
    if seen is not None:
        _show_leftovers(seen)
    elif rows:
        next_commands("spmd-launch status NAME", "spmd-launch down NAME", "spmd-launch list --all")
    else:
        next_commands("spmd-launch up FILE", "spmd-launch list --all")


def _show_leftovers(seen: Search) -> None:
    asked = ", ".join(str(place) for place in seen.asked)
    if seen.found:
        click.echo("\nin clouds, of no cluster that is known here (it may be a colleague's):")
        rows = [[r.name, r.kind, r.where, r.cluster, r.state, "yes" if r.billable else "no", r.user or "?"]
                for r in seen.found]  # fmt: skip
        click.echo(table(["name", "kind", "where", "cluster", "state", "paid", "by"], rows, gap=1))
    else:
        click.echo(f"\nnothing is left over in clouds (asked: {asked or 'none, as none was ever used from here'})")
    for failure in seen.failures:
        click.echo(f"! {failure}")
    next_commands(*(f"spmd-launch down --leftover {resource.name}" for resource in seen.found), "spmd-launch status")


def _cost(cost: dict[str, Any] | None) -> str:
    if cost is None:
        return "-"
    return "unknown" if cost["usd"] is None else f"${cost['usd']:.2f}"


def _show_json(clusters: list[dict[str, Any]], seen: Search | None) -> None:
    value: dict[str, Any] = {"clusters": clusters}
    if seen is not None:
        value |= {
            "leftovers": [dataclasses.asdict(resource) for resource in seen.found],
            "asked": [dataclasses.asdict(place) for place in seen.asked],
            "failures": list(seen.failures),
        }
    show_json(value)
