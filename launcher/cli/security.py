"""`doctor --security`: every socket on which a cluster listens, who can reach it, what guards it, how to close it."""

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

import click

from cluster.record import Cluster
from launcher.cli.console import next_commands, show_json, table
from launcher.errors import FailureError
from launcher.exposure import NOTHING, Firewall, Row, firewalls, judge
from launcher.host_sockets import HostSockets
from launcher.protocol import Connection


@dataclasses.dataclass(frozen=True)
class Exposure:
    """Of one cluster.

    Attributes:
        name: of the cluster.
        rows: a socket each.
        firewalls: that keep strangers out of all of them; none where no other machine can connect.
    """

    name: str
    rows: list[Row]
    firewalls: list[Firewall]


def look(name: str) -> Exposure:
    """Asks all agents of a cluster.

    Raises:
        FailureError: the cluster is not up, or not all agents answer.
    """
    cluster = Cluster.load(name)
    if cluster is None or not cluster.alive():
        raise FailureError(f"cluster {name!r} is not up: there is nothing to look at")
    with Connection(cluster.socket) as connection:
        answer = connection.ask({"op": "sockets"})
    seen = [HostSockets.from_json(host) for host in answer["hosts"]]
    rows = judge(seen, answer["raylet_ports"])
    return Exposure(name, rows, firewalls(seen, rows, _sshd_ports(cluster)))


def _sshd_ports(cluster: Cluster) -> set[int]:
    """Those that the cluster file names; ssh's own config may name others."""
    targets = cluster.access.targets if cluster.access else ()
    return {target.port for target in targets if target.port is not None}


def show(exposures: list[Exposure], as_json: bool) -> None:
    if as_json:
        show_json([_to_json(exposure) for exposure in exposures])
        return
    for exposure in exposures:
        click.echo(f"cluster {exposure.name}: what it listens on\n")
        for hosts in dict.fromkeys(row.hosts for row in exposure.rows):
            click.echo(", ".join(hosts))
            click.echo(rows_table([row for row in exposure.rows if row.hosts == hosts]) + "\n")
        click.echo(_summary(exposure))
    next_commands("spmd-launch doctor")


def rows_table(rows: list[Row]) -> str:
    """80 columns; `!` marks what other machines can reach and nothing guards."""
    cells = [[_place(row), row.process, row.reach, row.guard] for row in rows]
    marked = {index for index, row in enumerate(rows) if row.is_open and row.guard == NOTHING}
    return table(["listens on", "process", "who can reach it", "guard"], cells, marked=marked)


def _place(row: Row) -> str:
    if row.protocol == "unix":
        return f"unix {Path(row.address).name}"
    address = f"[{row.address}]" if ":" in row.address else row.address
    place = f"{address}:{row.port}"
    return place if row.protocol == "tcp" else f"{row.protocol} {place}"


def _summary(exposure: Exposure) -> str:
    if not exposure.firewalls:
        return "No other machine can connect to any of it."
    unguarded = sum(row.is_open and row.guard == NOTHING for row in exposure.rows)
    lines = [
        f"Other machines can connect to {sum(row.is_open for row in exposure.rows)} of these; {unguarded} of them have "
        "no guard (!).",
        "Ray's token is sent unencrypted: who can read the hosts' packets has it.",
    ]
    for firewall in exposure.firewalls:
        lines += [
            "",
            "# This closes them to all but the hosts; an sshd on one of these ports needs a",
            "# line of its own. As root, `nft -f FILE` on",
            *textwrap.wrap(", ".join(firewall.hosts), 77, initial_indent="#   ", subsequent_indent="#   "),
            firewall.rules.rstrip(),
        ]
    return "\n".join(lines)


def _to_json(exposure: Exposure) -> dict[str, Any]:
    return {
        "name": exposure.name,
        "sockets": [dataclasses.asdict(row) for row in exposure.rows],
        "firewalls": [dataclasses.asdict(firewall) for firewall in exposure.firewalls],
    }
