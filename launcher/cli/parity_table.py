"""The host parity table: one row a host, the odd one marked."""

import hashlib
import textwrap
from collections.abc import Sequence

from launcher.attempt import HostFacts
from launcher.cli.console import table
from launcher.parity import Difference


def parity_table(facts: Sequence[HostFacts], differences: Sequence[Difference]) -> str:
    """The table, and below it one line for each difference; 80 columns for usual names.

    jaxlib is shown beside jax only where its version is another; of TFP's nightly, the date.
    """
    odd = {host for difference in differences for host in difference.hosts}
    middle = sorted(fact.clock for fact in facts)[len(facts) // 2]
    rows = [
        [
            fact.host,
            fact.versions["python"],
            fact.versions["jax"] + ("" if _same_jaxlib(fact) else f"/{fact.versions['jaxlib']}"),
            fact.versions["tfp-nightly"].rpartition("dev")[2],
            fact.versions["ray"],
            fact.code_digest[:6],
            _digest(fact.flags),
            f"{fact.num_devices} {fact.device_kind}" if fact.num_devices >= 0 else "none",
            fact.resolves_to,
            f"{fact.clock - middle:+.0f}s",
        ]
        for fact in facts
    ]
    headers = ["host", "python", "jax", "tfp", "ray", "code", "flags", "devices", "resolves", "clock"]
    marked = {index for index, fact in enumerate(facts) if fact.host in odd}
    lines = [table(headers, rows, marked=marked, gap=1)]
    flags = " ".join(f"{name}={value}" for name, value in facts[0].flags.items())
    lines.append(textwrap.fill(f"flags: {flags or 'none'}", 78, initial_indent="  ", subsequent_indent="    "))
    lines += [f"! {difference}" for difference in differences]
    return "\n".join(lines)


def _same_jaxlib(fact: HostFacts) -> bool:
    return fact.versions["jax"] == fact.versions["jaxlib"]


def _digest(flags: object) -> str:
    return hashlib.sha256(repr(flags).encode()).hexdigest()[:4]
