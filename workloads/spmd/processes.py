"""Who takes part, and small messages between them: in one plain process, under our ranks, or in a script's own job."""

import collections
import dataclasses
import os
import socket

import jax

from workloads.exchange import Exchange, this_process
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


def barriers() -> "Barriers":
    """The barriers that this process has been at."""
    return _services().barriers


class Barriers:
    """Counts how often each barrier was met, and takes back what was posted there.

    Attributes:
        hosts: names by rank, as far as they are known.

    Args:
        messages: between all processes.
    """

    def __init__(self, messages: Exchange):
        self.hosts: dict[int, str] = {}
        self._messages = messages
        self._counts = collections.Counter[str]()
        self._met: list[Exchange] = []

    def meet(self, name: str) -> Exchange:
        """Messages for this process's next time at that barrier."""
        self._counts[name] += 1
        return self._messages.apart(f"barrier {name} {self._counts[name]}")

    def passed(self, meeting: Exchange, hosts: list[str]) -> None:
        """All are here, and so have left every barrier before this one: what was posted there is not read again."""
        self.hosts.update(enumerate(hosts))
        for earlier in self._met:
            earlier.forget()
        self._met = [meeting]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Services:
    """What counts its rounds from `jax.distributed.initialize`, and must therefore be made once after each."""

    all: Exchange
    pairs: dict[tuple[int, ...], Exchange]
    checker: ReplicaChecker
    barriers: Barriers


def _services() -> _Services:
    global _known  # noqa: PLW0603
    job, rank, num_ranks = this_process()
    if _known is None or _known[0] is not job:
        messages = Exchange(rank, num_ranks, TIMEOUT_S, namespace="spmd/")
        checker = ReplicaChecker(messages.apart("replicas"), host_name())
        _known = job, _Services(all=messages, pairs={}, checker=checker, barriers=Barriers(messages))
    return _known[1]


def first_difference(topic: str, mine: dict[str, str]) -> tuple[str, str] | None:
    """Compares what every process says of its leaves; all must call.

    Args:
        topic: of the exchange.
        mine: by path.

    Returns:
        The first path of which they say different things, and what which rank says; None if they agree.
    """
    posts = exchange().all_gather(topic, mine)
    for path in dict.fromkeys(path for post in posts for path in post):
        found = [post.get(path, "absent") for post in posts]
        if len(set(found)) > 1:
            return path, ", ".join(f"{part} on rank {rank}" for rank, part in enumerate(found))
    return None


def path_of(keys: tuple[object, ...]) -> str:
    """A leaf's place in its tree, as `params/w`."""
    return jax.tree_util.keystr(keys, simple=True, separator="/") or "(the tree itself)"
