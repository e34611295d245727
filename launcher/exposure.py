"""Who can reach what a cluster listens on, what guards it, and what would close it. Pure."""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from cluster.sockets import Listening
from launcher.host_sockets import HostSockets, RankHere

THIS_USER, THIS_HOST, ITS_NETWORK, EVERYBODY = "this user", "this host", "its network", "everybody"
TOKEN, TLS, FILES, NOTHING = "Ray's token", "mutual TLS", "permissions", "nothing"
ACTORS = {"Agent": "agent", "Supervisor": "supervisor", "KeeperActor": "keeper", "Keeper": "keeper"}
RAY_WORKER = " (Ray worker)"
# Ports of the raylet, as Ray's list of nodes calls them.
RAYLET_PORTS = {"NodeManagerPort": "raylet", "ObjectManagerPort": "object manager"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One socket, judged.

    Attributes:
        hosts: whose machine it is on.
        protocol, address, port, pid: as in `Listening`.
        process: what it is of ours.
        reach: who can connect: `this user`, `this host` (all its users), `its network` (that of the address), or
            `everybody` who reaches any of the host's addresses.
        guard: what stops those who can connect: `Ray's token`, `mutual TLS`, `permissions`, or `nothing`.
    """

    hosts: tuple[str, ...]
    protocol: str
    address: str
    port: int
    pid: int
    process: str
    reach: str
    guard: str

    @property
    def is_open(self) -> bool:
        """Whether other machines can connect."""
        return self.reach in (ITS_NETWORK, EVERYBODY)


@dataclass(frozen=True, kw_only=True)
class Firewall:
    """Rules that let a cluster's own hosts in and keep strangers out.

    Attributes:
        hosts: on which to load them.
        rules: what `nft -f` reads; loaded again, it replaces itself.
    """

    hosts: tuple[str, ...]
    rules: str


def judge(seen: Sequence[HostSockets], raylet_ports: Mapping[str, str]) -> list[Row]:
    """A row for each socket; those of one machine together, in the order of hosts.

    Args:
        seen: of all agents.
        raylet_ports: `{address:port: raylet or object manager}`, which only Ray can tell apart.
    """
    rows = []
    for here in _machines(seen):
        hosts = tuple(one.host for one in here)
        ranks = {pid: rank for one in here for pid, rank in one.ranks.items()}
        # Agents of one machine see the same sockets; what a worker calls itself may have changed in between.
        sockets = {(one.protocol, one.port, one.address, one.pid): one for host in here for one in host.sockets}
        for _, socket in sorted(sockets.items()):
            process, guard = _role(socket, ranks, raylet_ports.get(f"{here[0].address}:{socket.port}", "raylet"))
            rows.append(
                Row(
                    hosts=hosts, protocol=socket.protocol, address=socket.address, port=socket.port, pid=socket.pid,
                    process=process, reach=reach(socket), guard=guard,
                )
            )  # fmt: skip
    return rows


def reach(socket: Listening) -> str:
    """Who can connect, as far as addresses and file permissions decide it."""
    if socket.protocol == "unix":
        return THIS_USER if socket.private else THIS_HOST
    address = ipaddress.ip_address(socket.address)
    if address.is_loopback:
        return THIS_HOST
    return EVERYBODY if address.is_unspecified else ITS_NETWORK


def _role(socket: Listening, ranks: Mapping[int, RankHere], raylet_port: str) -> tuple[str, str]:
    """`(process, guard)`."""
    if socket.protocol == "unix":
        return _process(socket, ranks, "raylet"), FILES if socket.private else NOTHING
    rank = ranks.get(socket.pid)
    if rank is not None:
        if rank.coordinator == f"{socket.address}:{socket.port}":
            return f"{rank.words}: coordinator", TLS if rank.mutual_tls else NOTHING
        return f"{rank.words}: gloo", NOTHING
    process = _process(socket, ranks, raylet_port)
    is_ray = process in ("GCS", raylet_port) or process.endswith(RAY_WORKER)
    return process, TOKEN if is_ray else NOTHING


def _process(socket: Listening, ranks: Mapping[int, RankHere], raylet_port: str) -> str:
    if socket.pid in ranks:
        return ranks[socket.pid].words
    program = socket.command[0] if socket.command else "?"
    if program.startswith("ray::"):
        name = program.removeprefix("ray::").partition(".")[0]
        return f"{ACTORS.get(name, name)}{RAY_WORKER}"
    modules = [word for word in socket.command if word.startswith(("launcher.", "cluster."))]
    return {"gcs_server": "GCS", "raylet": raylet_port}.get(PurePath(program).name, "".join(modules[:1]) or program)


def firewalls(seen: Sequence[HostSockets], rows: Sequence[Row], sshd_ports: Iterable[int] = ()) -> list[Firewall]:
    """Rules for each machine that other machines can connect to; hosts with the same rules share them.

    Most ports are chosen anew by the kernel for each cluster and attempt, so its whole range is closed to strangers.

    Args:
        seen: of all agents.
        rows: of `judge`.
        sshd_ports: that stay open to all.
    """
    found: dict[str, tuple[str, ...]] = {}
    for here in _machines(seen):
        hosts = tuple(one.host for one in here)
        ports = {row.port for row in rows if row.is_open and row.hosts == hosts}
        if ports:
            text = _nft(sorted({one.address for one in seen}), here[0].port_range, ports, sorted(sshd_ports))
            found[text] = (*found.get(text, ()), *hosts)
    return [Firewall(hosts=hosts, rules=text) for text, hosts in found.items()]


def _nft(addresses: Sequence[str], port_range: tuple[int, int], ports: set[int], sshd_ports: Sequence[int]) -> str:
    low, high = port_range
    closed = [f"{low}-{high}", *(str(port) for port in sorted(ports) if not low <= port <= high)]
    families = {"ip": [a for a in addresses if ":" not in a], "ip6": [a for a in addresses if ":" in a]}
    lines = [
        "iif lo accept",
        "ct state established,related accept",
        *(f"{family} saddr {{ {', '.join(given)} }} accept" for family, given in families.items() if given),
        *(f"tcp dport {port} accept" for port in sshd_ports),
        f"tcp dport {{ {', '.join(closed)} }} drop",
    ]
    return (
        "table inet spmd-launch\n"
        "delete table inet spmd-launch\n"
        "table inet spmd-launch {\n"
        "  chain input {\n"
        "    type filter hook input priority filter; policy accept;\n"
        + "".join(f"    {line}\n" for line in lines)
        + "  }\n}\n"
    )


def _machines(seen: Sequence[HostSockets]) -> list[list[HostSockets]]:
    """What the agents of each machine have seen, in the order of hosts."""
    return [[one for one in seen if one.machine == machine] for machine in dict.fromkeys(one.machine for one in seen)]
