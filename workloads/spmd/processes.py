"""Who takes part, and small messages between them: in one plain process, under our ranks, or in a script's own job."""

import dataclasses
import os
import socket

import jax
from jax._src import distributed  # the client tells one job of this process from the next; it has no public name

from workloads.exchange import Exchange
from workloads.integrity import ReplicaChecker

# How long a call waits for the slowest process before it names it.
TIMEOUT_S = 300.0

_known: "tuple[object, _Services] | None" = None


def host_name() -> str:
    """This host's name: the launcher's where it gave one (emulated hosts share the machine's), else the machine's."""
    return os.environ.get("SPMD_LAUNCH_HOST") or socket.gethostname()


def exchange() -> Exchange:
    """Messages between all processes of `jax.distributed`; with one process nothing leaves it."""
    return _services().all


def exchange_with(other: int) -> Exchange:
    """Messages between this process and one other; the same object whenever it is asked for."""
    services = _services()
    pair = tuple(sorted((services.all.rank, other)))
    if pair not in services.pairs:
        services.pairs[pair] = services.all.apart("-".join(map(str, pair)), ranks=pair)
    return services.pairs[pair]


def checker() -> ReplicaChecker:
    """Compares copies on all processes; keeps the plans of trees that it has seen."""
    return _services().checker


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Services:
    """What counts its rounds from `jax.distributed.initialize`, and must therefore be made once after each."""

    all: Exchange
    pairs: dict[tuple[int, ...], Exchange]
    checker: ReplicaChecker


def _services() -> _Services:
    global _known  # noqa: PLW0603
    client = distributed.global_state.client
    if _known is None or _known[0] is not client:
        messages = Exchange(jax.process_index(), jax.process_count(), TIMEOUT_S, namespace="spmd/")
        checker = ReplicaChecker(messages.apart("replicas"), host_name())
        _known = client, _Services(all=messages, pairs={}, checker=checker)
    return _known[1]


def path_of(keys: tuple[object, ...]) -> str:
    """A leaf's place in its tree, as `params/w`."""
    return jax.tree_util.keystr(keys, simple=True, separator="/") or "(the tree itself)"
