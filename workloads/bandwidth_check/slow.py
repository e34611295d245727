"""Which hosts and links are slow beside the others. Pure.

A link is judged by its psum, whose data passes both ways: by the latency at the smallest size, and by the bus bandwidth
at the largest that all pairs have measured; by the fastest launch, which other work disturbs the least. Where other
work disturbs that too, links differ by chance: the fastest must also be worse than the others' median launch.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

FACTOR = 2.0
Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """What one pair of hosts was found to do.

    Attributes:
        latency_s: of a psum of the smallest size, the fastest launch.
        bytes_per_s: bus bandwidth of a psum of the largest size, the fastest launch.
        usual_latency_s, usual_bytes_per_s: the same of the median launch.
    """

    latency_s: float
    bytes_per_s: float
    usual_latency_s: float
    usual_bytes_per_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slow:
    """A host all of whose links are slow, or one slow link.

    Attributes:
        hosts: one, or the two of a link.
        what: in words, with got and expected.
    """

    hosts: tuple[int, ...]
    what: str


def find_slow(links: Mapping[Pair, Link]) -> list[Slow]:
    """Hosts and links with less than half of the others' median bandwidth, or over twice their latency.

    A host is slow if even its best link is so beside the median of the links between the others; its links are then
    told once, with it, and the rest are compared among each other. Of three hosts two links in three are a slow host's,
    so that a median over all would call them normal. One pair alone has nothing to be compared with.
    """
    found = []
    rest = dict(links)
    for host in sorted({host for pair in links for host in pair}):
        own = [link for pair, link in links.items() if host in pair]
        others = [link for pair, link in links.items() if host not in pair]
        if len(own) > 1 and others and (what := _compare(_best(own), others)):
            found.append(Slow(hosts=(host,), what=f"all its links are slow: {what} at best"))
            rest = {pair: link for pair, link in rest.items() if host not in pair}
    for pair, link in rest.items():
        if len(rest) > 1 and (what := _compare(link, list(rest.values()))):
            found.append(Slow(hosts=pair, what=what))
    return found


def _compare(link: Link, others: Sequence[Link]) -> str:
    """How it is slow beside the median of others, in words, or ''."""
    bandwidth, latency = _median(others, "bytes_per_s"), _median(others, "latency_s")
    said = []
    if link.bytes_per_s * FACTOR < bandwidth and link.bytes_per_s < _median(others, "usual_bytes_per_s"):
        said.append(f"{_in_gb(link.bytes_per_s)} GB/s where the median is {_in_gb(bandwidth)} GB/s")
    if link.latency_s > FACTOR * latency and link.latency_s > _median(others, "usual_latency_s"):
        said.append(f"{_in_us(link.latency_s)} us of latency where the median is {_in_us(latency)} us")
    return ", and ".join(said)


def _best(links: Sequence[Link]) -> Link:
    """What the links of a host are at best."""
    return Link(
        latency_s=min(link.latency_s for link in links),
        bytes_per_s=max(link.bytes_per_s for link in links),
        usual_latency_s=min(link.usual_latency_s for link in links),
        usual_bytes_per_s=max(link.usual_bytes_per_s for link in links),
    )


def _median(links: Sequence[Link], name: str) -> float:
    return statistics.median(getattr(link, name) for link in links)


def _in_gb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g}"


def _in_us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}"
