"""`doctor --bandwidth`: measures a cluster's links by a job, `bandwidth-check`, and shows what it found."""

import textwrap
from collections.abc import Mapping
from typing import Any

import click

from launcher.cli.console import next_commands, say, show_json, table
from launcher.errors import FailureError
from launcher.words import number_of_bytes

WORKLOAD = "bandwidth-check"
MAX_LINKS = 20  # shown; --json has all

Group = Mapping[str, Any]


def measure(cluster_name: str | None, settings: Mapping[str, str], *, wait: bool, as_json: bool) -> int:
    """Runs the job to its end and prints its tables.

    Args:
        cluster_name: None: the only cluster that is up.
        settings: of the job.
        wait: queue behind other jobs; else be refused if hosts are not free.
        as_json: print what was found as JSON.

    Returns:
        The exit code: 1 if something is slow.

    Raises:
        UserError: no such cluster or setting, or its hosts are not free.
        FailureError: the job did not succeed.
    """
    from launcher.cli.live import follow
    from launcher.cli.results import find_job
    from launcher.job import JobOptions
    from launcher.outputs import read_summary
    from launcher.submission import Request, prepare, send

    options = JobOptions(max_failures=0, checkpoint_every=0)
    prepared = prepare(Request(workload=WORKLOAD, settings=settings, options=options, cluster=cluster_name))
    job = send(prepared, wait=wait)["name"]
    at_most_s = prepared.spec.config["seconds"]
    say(f"job {job} measures the links of {prepared.cluster.name}, for about {at_most_s:g} s at most")
    try:
        final = follow(prepared.cluster, job, to_stderr=True)
    except KeyboardInterrupt:
        say(f"\ndetached: job {job} goes on; `spmd-launch results {job} --json` has what it finds")
        return 130
    summary = read_summary(find_job(job).path)
    if final["state"] != "SUCCEEDED" or summary is None:
        raise FailureError(f"job {job}, which measures the links, is {final['state']}: {final['message']}")
    found = summary["diagnostics"]
    if as_json:
        show_json({"cluster": prepared.cluster.name, "job": job, **found})
    else:
        show(found)
        next_commands(f"spmd-launch results {job} --json", "spmd-launch status")
    return 1 if found["problems"] else 0


def show(found: Mapping[str, Any]) -> None:
    """Prints what the job found: all sizes over all hosts, then a line for the inside of each host and each link."""
    groups = [group for group in found["groups"] if group["measurements"]]
    if groups:
        widest = max(groups, key=lambda group: len(group["hosts"]))
        click.echo(f"over all: {len(widest['hosts'])} host(s), {widest['measurements'][0]['num_devices']} devices")
        click.echo(_all_sizes(widest))
    for title, number in (("inside a host", 1), ("between two hosts", 2)):
        _show_part(title, [group for group in groups if len(group["hosts"]) == number])
    click.echo("")
    for line in (*(f"  {note}" for note in found["notes"]), *(f"! {problem}" for problem in found["problems"])):
        click.echo(textwrap.fill(line, 78, subsequent_indent="  ", drop_whitespace=True))
    if not found["problems"]:
        click.echo("all values are right to the bit, and nothing that could be compared is slow")


def _all_sizes(group: Group) -> str:
    """One line a measurement, and one for each that there was no time for."""
    rows = [
        [one["collective"], number_of_bytes(one["num_bytes"]), _us(one["min_s"]), _us(one["median_s"]),
         _gb(one["bus_bytes_per_s"]), str(one["repeats"])]
        for one in group["measurements"]
    ]  # fmt: skip
    rows += [[collective, number_of_bytes(size), "-", "-", "-", "left out"] for collective, size in group["left_out"]]
    return table(["collective", "size", "us, best", "us, median", "GB/s, bus", "launches"], rows)


def _show_part(title: str, groups: list[Group]) -> None:
    """One line a group, the slowest first."""
    if not groups:
        return
    largest: dict[str, int] = {}
    for one in (one for group in groups for one in group["measurements"]):
        largest[one["collective"]] = max(one["num_bytes"], largest.get(one["collective"], 0))
    rows = []
    for group in sorted(groups, key=lambda group: _bandwidth(group, "psum", largest["psum"]))[:MAX_LINKS]:
        smallest = min(group["measurements"], key=lambda one: one["num_bytes"])
        rates = [_bandwidth(group, collective, size) for collective, size in largest.items()]
        rows.append(
            [" - ".join(group["hosts"]), _us(smallest["min_s"]), *(_gb(rate) if rate else "-" for rate in rates)]
        )
    click.echo(f"\n{title}: us of the smallest psum, bus GB/s of the largest of each")
    click.echo(table(["", "us", *largest], rows, gap=1))
    if len(groups) > MAX_LINKS:
        click.echo(f"  and {len(groups) - MAX_LINKS} faster ones, which --json has")


def _bandwidth(group: Group, collective: str, num_bytes: int) -> float:
    """In bytes/s on the bus, at one size; 0: there was no time for it."""
    measured = ((one["collective"], one["num_bytes"], one["bus_bytes_per_s"]) for one in group["measurements"])
    return next((rate for name, size, rate in measured if (name, size) == (collective, num_bytes)), 0.0)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}"


def _gb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3f}" if bytes_per_s < 10e9 else f"{bytes_per_s / 1e9:.1f}"
