"""What was measured, as the job's diagnostics hold it, with what is slow. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from workloads.bandwidth_check.plan import PSUM, Measurement
from workloads.bandwidth_check.slow import Link, Pair, find_slow


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What came of one group of hosts.

    Attributes:
        ranks: of the group.
        measurements: in the order in which they were made; none if there was no time at all.
        left_out: collective and size in bytes of each that there was no time for.
    """

    ranks: Sequence[int]
    measurements: Sequence[Measurement]
    left_out: Sequence[tuple[str, int]]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Found":
        return cls(**{**value, "measurements": [Measurement(**one) for one in value["measurements"]]})

    def psums(self) -> dict[int, Measurement]:
        """By size in bytes, from the smallest up."""
        return {one.num_bytes: one for one in self.measurements if one.collective == PSUM}


def describe(everything: Sequence[Found], hosts: Sequence[str]) -> dict[str, Any]:
    """All that was found.

    Args:
        everything: of all groups.
        hosts: names by rank.

    Returns:
        `groups`, the smallest first, each with `hosts`, `measurements` and `left_out`; `slow`, each with `hosts` and
        `what`; `problems`, sentences about those; `notes`, sentences about what could not be measured or judged.
    """
    links = judged_links(everything)
    slow = [([hosts[rank] for rank in one.hosts], one.what) for one in find_slow(links)]
    return {
        "groups": [
            {
                "hosts": [hosts[rank] for rank in found.ranks],
                "measurements": [
                    {**dataclasses.asdict(one), "bus_bytes_per_s": one.bus_bytes_per_s} for one in found.measurements
                ],
                "left_out": [list(one) for one in found.left_out],
            }
            for found in sorted(everything, key=lambda found: (len(found.ranks), found.ranks))
        ],
        "slow": [{"hosts": names, "what": what} for names, what in slow],
        "problems": [_sentence(names, what) for names, what in slow],
        "notes": _notes(everything, links, len(hosts)),
    }


def headline(everything: Sequence[Found], num_hosts: int) -> dict[str, float]:
    """Latency of the smallest psum over all hosts, and bus bandwidth of the largest; nothing if there was none."""
    of_all = next((found.psums() for found in everything if len(found.ranks) == num_hosts), {})
    if not of_all:
        return {}
    return {
        "psum_latency_s": of_all[min(of_all)].min_s,
        "psum_bus_bytes_per_s": of_all[max(of_all)].bus_bytes_per_s,
    }


def judged_links(everything: Sequence[Found]) -> dict[Pair, Link]:
    """The links that were measured: the latency at the smallest size, the bandwidth at the largest that all have."""
    pairs = {(found.ranks[0], found.ranks[1]): found.psums() for found in everything if len(found.ranks) == 2}
    pairs = {pair: psums for pair, psums in pairs.items() if psums}
    if not pairs:
        return {}
    in_all = set.intersection(*(set(psums) for psums in pairs.values()))
    ends = {pair: (psums[min(in_all)], psums[max(in_all)]) for pair, psums in pairs.items()}
    return {
        pair: Link(
            latency_s=smallest.min_s,
            bytes_per_s=largest.bus_bytes_per_s,
            usual_latency_s=smallest.median_s,
            usual_bytes_per_s=largest.usual_bus_bytes_per_s,
        )
        for pair, (smallest, largest) in ends.items()
    }


def _sentence(names: Sequence[str], what: str) -> str:
    return f"host {names[0]}: {what}" if len(names) == 1 else f"the link between {names[0]} and {names[1]}: {what}"


def _notes(everything: Sequence[Found], links: Mapping[Pair, Link], num_hosts: int) -> list[str]:
    notes = []
    if num_hosts == 1:
        notes.append("one host has no link to another")
    if num_hosts == 2:
        notes.append("two hosts have one link, so there is no other to compare it with")
    num_pairs = num_hosts * (num_hosts - 1) // 2
    if len(links) < num_pairs:
        notes.append(f"no time for {num_pairs - len(links)} of {num_pairs} pairs of hosts: --set seconds=MORE")
    cut = sum(1 for found in everything if found.left_out and found.measurements)
    if cut:
        notes.append(f"{cut} of {len(everything)} groups had no time for all sizes: --set seconds=MORE")
    if not any(len(found.ranks) == 1 for found in everything):
        notes.append("one device a host: nothing to measure inside a host")
    return notes
