"""Which nodes of a Ray that is not ours become hosts. Pure."""

import dataclasses
import ipaddress
import re
from collections.abc import Sequence

from cluster.errors import ClusterError

AGENT_CPUS = 1.0
SUPERVISOR_CPUS = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayNode:
    """One node that is alive.

    Attributes:
        node_id: Ray's identifier, hexadecimal.
        address: where other nodes reach it.
        hostname: as the node says it.
        is_head: whether the control service runs there.
        cpus, free_cpus: in all, and what nobody has reserved.
        holders: who has reserved the others, in words.
    """

    node_id: str
    address: str
    hostname: str
    is_head: bool
    cpus: float
    free_cpus: float
    holders: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.address if self.hostname == self.address else f"{self.address} ({self.hostname})"


def choose(nodes: Sequence[RayNode], own: str, num_hosts: int, spares: int) -> list[RayNode]:
    """The nodes that become hosts, in the order of ranks: the head first if it can be one, then by address.

    A host needs a CPU for its agent; the supervisor takes one of the client's node, if that offers any to anybody.

    Args:
        nodes: all that are alive.
        own: id of the node on which the client is, and the supervisor will be.
        num_hosts: how many, beside the spares; 0: as many as there are.
        spares: further ones.

    Raises:
        ClusterError: there are too few, or others hold what is needed: which node lacks what, and who has it.
    """
    ours = next(node for node in nodes if node.node_id == own)
    if ours.free_cpus < supervisor_cpus(ours):
        raise ClusterError(f"there is no CPU free for the supervisor:\n  {_lack(ours, supervisor_cpus(ours))}")

    def needs(node: RayNode) -> float:
        return AGENT_CPUS + (supervisor_cpus(node) if node is ours else 0.0)

    able = [node for node in sorted(nodes, key=_place) if node.cpus >= needs(node)]
    free = [node for node in able if node.free_cpus >= needs(node)]
    wanted = num_hosts + spares if num_hosts else len(able)
    if wanted <= spares or len(free) < wanted:
        lacks = [_lack(node, needs(node)) for node in sorted(nodes, key=_place) if node not in free]
        raise ClusterError(
            f"{max(wanted, spares + 1)} node(s) are wanted as hosts, {len(free)} of {len(nodes)} can be one now"
            + "".join(f"\n  {lack}" for lack in lacks)
        )
    return free[:wanted]


def supervisor_cpus(node: RayNode) -> float:
    """What the supervisor reserves there: nothing on a node that offers no CPU to anybody, as KubeRay's head may be."""
    return min(SUPERVISOR_CPUS, node.cpus)


def host_names(nodes: Sequence[RayNode]) -> list[str]:
    """What we call them: their hostnames, numbered where several nodes have one (they are on one machine)."""
    names = [re.sub(r"[^A-Za-z0-9_.-]+", "-", node.hostname) or node.address for node in nodes]
    return [f"{name}-{index}" if names.count(name) > 1 else name for index, name in enumerate(names)]


def _place(node: RayNode) -> tuple[bool, int, int, str, str]:
    try:
        address = ipaddress.ip_address(node.address)
        return not node.is_head, address.version, int(address), "", node.node_id
    except ValueError:  # a name
        return not node.is_head, 0, 0, node.address, node.node_id


def _lack(node: RayNode, needed: float) -> str:
    if node.cpus < needed:
        return f"{node}: offers {node.cpus:g} CPU(s), {needed:g} needed"
    holders = ", ".join(node.holders) or "tasks or placement groups, which Ray does not name"
    return f"{node}: {node.free_cpus:g} of {node.cpus:g} CPU(s) free, {needed:g} needed; held by {holders}"
