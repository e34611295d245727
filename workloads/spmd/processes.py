"""Who takes part, and small messages between them: in one plain process, under our ranks, or in a script's own job."""

import os
import socket

import jax
from jax._src import distributed  # the client tells one job of this process from the next; it has no public name

from workloads.exchange import Exchange
from workloads.integrity import ReplicaChecker

# How long a call waits for the slowest process before it names it.
TIMEOUT_S = 300.0

_known: tuple[object, Exchange, ReplicaChecker] | None = None


def host_name() -> str:
    """This host's name: the launcher's where it gave one (emulated hosts share the machine's), else the machine's."""
    return os.environ.get("SPMD_LAUNCH_HOST") or socket.gethostname()


def exchange() -> Exchange:
    """Messages between all processes of `jax.distributed`; with one process nothing leaves it."""
    return _services()[0]


def checker() -> ReplicaChecker:
    """Compares copies on all processes; keeps the plans of trees that it has seen."""
    return _services()[1]


def _services() -> tuple[Exchange, ReplicaChecker]:
    """Made once for each `jax.distributed.initialize`: their rounds are counted from its beginning."""
    global _known  # noqa: PLW0603
    client = distributed.global_state.client
    if _known is None or _known[0] is not client:
        messages = Exchange(jax.process_index(), jax.process_count(), TIMEOUT_S, namespace="spmd/")
        _known = client, messages, ReplicaChecker(messages.apart("replicas"), host_name())
    return _known[1], _known[2]


def path_of(keys: tuple[object, ...]) -> str:
    """A leaf's place in its tree, as `params/w`."""
    return jax.tree_util.keystr(keys, simple=True, separator="/") or "(the tree itself)"
