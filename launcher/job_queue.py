"""Who gets which hosts: first come, first served. A pure decision."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A queued job and how many hosts it needs."""

    name: str
    num_hosts: int


def num_hosts_to_ask(sizes: Sequence[int], num_alive: int) -> int:
    """How many hosts a queued job asks for.

    Args:
        sizes: numbers of hosts that it may run on, the one that it wants first.
        num_alive: hosts that are not lost, whoever holds them.

    Returns:
        What it wants; where that is more than are alive, the most that it may run on: as when a host is lost while it
        runs. Where it needs more, what it wants: it waits.
    """
    return max((size for size in sizes if size <= num_alive), default=sizes[0])


def next_to_start(
    queue: Sequence[Waiting], units: Sequence[tuple[str, ...]], held: Mapping[str, str]
) -> tuple[str, list[str]] | None:
    """The job that may start now, and on which hosts.

    Strictly first come, first served: a small job does not pass a large one that waits, or the large one would starve.

    Args:
        queue: in the order of submission.
        units: hosts that a job gets all together or not at all (a TPU slice, or one host), best first; all alive.
        held: `{host: job that holds it}`.

    Returns:
        The first job's name and its hosts (best first), or None if it must wait or nobody does.
    """
    if not queue:
        return None
    first = queue[0]
    chosen: list[str] = []
    for unit in units:
        if held.keys().isdisjoint(unit) and len(chosen) + len(unit) <= first.num_hosts:
            chosen += unit
    return (first.name, chosen) if len(chosen) == first.num_hosts else None
