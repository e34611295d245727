"""Do all hosts run the same thing? What their agents find, and a pure comparison of it."""

import asyncio
import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.accelerators import CPU, Accelerator
from launcher.attempt import HostFacts

MAX_CLOCK_SKEW_S = 60.0


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing in which hosts differ from the others, or from what was asked for.

    Attributes:
        what: package, variable or property.
        hosts: the odd ones.
        found: what they have.
        expected: what the others have, or what the cluster file says.
        matters: whether it is refused; else it is only said.
    """

    what: str
    hosts: tuple[str, ...]
    found: str
    expected: str
    matters: bool

    def __str__(self) -> str:
        return f"{self.what}: {', '.join(self.hosts)} has {self.found}, expected {self.expected}"


async def gather_facts(agents: Sequence[Any]) -> list[HostFacts]:
    """Asks all agents at once; their clocks at one moment, after the slow parts.

    Args:
        agents: Ray handles.
    """
    facts = await asyncio.gather(*(agent.facts.remote() for agent in agents))
    clocks = await asyncio.gather(*(agent.clock.remote() for agent in agents))
    return [dataclasses.replace(fact, clock=clock) for fact, clock in zip(facts, clocks, strict=True)]


def compare(facts: Sequence[HostFacts], devices_per_host: int, accelerator: Accelerator = CPU) -> list[Difference]:
    """All differences, those that matter first.

    Args:
        facts: one a host.
        devices_per_host: as in the cluster file.
        accelerator: what JAX is to find.
    """
    differences = [
        Difference("devices", (fact.host,), _devices(fact), f"{devices_per_host}", True)
        for fact in facts
        if fact.num_devices != devices_per_host
    ]
    differences += [
        Difference("device kind", (fact.host,), fact.device_kind, _expected_kind(accelerator), True)
        for fact in facts
        if fact.num_devices > 0 and not accelerator.is_device(fact.device_kind)
    ]
    for package in facts[0].versions:
        differences += odd_ones(package, {fact.host: fact.versions[package] for fact in facts})
    differences += odd_ones("code", {fact.host: fact.code_digest[:12] for fact in facts})
    names = sorted({name for fact in facts for name in fact.flags})
    for name in names:
        differences += odd_ones(name, {fact.host: fact.flags.get(name, "unset") for fact in facts})
    right = {fact.host: fact.device_kind for fact in facts if accelerator.is_device(fact.device_kind)}
    differences += odd_ones("device kind", right)  # two sorts of A100, say
    middle = sorted(fact.clock for fact in facts)[len(facts) // 2]
    differences += [
        Difference("clock", (fact.host,), f"{fact.clock - middle:+.0f} s", "that of the others (only log times)", False)
        for fact in facts
        if abs(fact.clock - middle) > MAX_CLOCK_SKEW_S
    ]
    if accelerator.kind == "cpu":
        known = {fact.host: fact.processor for fact in facts if fact.processor}
        differences += [
            dataclasses.replace(odd, expected=f"{odd.expected} (only last bits of results)", matters=False)
            for odd in odd_ones("processor", known)
        ]
    differences += [
        Difference("hostname", (fact.host,), f"{fact.hostname}, which does not resolve", "a name that resolves", False)
        for fact in facts
        if fact.resolves_to == "-"
    ]
    return sorted(differences, key=lambda difference: not difference.matters)


def odd_ones(what: str, values: Mapping[str, str]) -> list[Difference]:
    """Hosts that differ from the majority; with a tie, from the first host."""
    if len(set(values.values())) <= 1:
        return []
    counts = collections.Counter(values.values())
    most = max(counts.values())
    expected = next(value for value in values.values() if counts[value] == most)
    by_value: dict[str, list[str]] = {}
    for host, value in values.items():
        if value != expected:
            by_value.setdefault(value, []).append(host)
    return [Difference(what, tuple(hosts), value, expected, True) for value, hosts in by_value.items()]


def _devices(fact: HostFacts) -> str:
    return f"{fact.num_devices}" if fact.num_devices >= 0 else fact.device_kind


def _expected_kind(accelerator: Accelerator) -> str:
    kinds = " or ".join(accelerator.device_kinds)
    return kinds if accelerator.kind == "cpu" else f"{kinds}, as {accelerator.name} has"
