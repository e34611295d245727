"""Where exactly do copies differ? Ranks narrow it down together, with fingerprints of ever smaller chunks."""

import base64
import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from workloads.exchange import Exchange
from workloads.integrity.elements import (
    DIGEST_BYTES,
    LocalCopy,
    as_hex,
    as_number,
    as_value,
    element_bits,
    element_bytes,
)
from workloads.integrity.plan import Bounds, Leaf
from workloads.integrity.verdict import Difference

ROUND_BYTES = 12_000  # what a host may post in one round, and so what five rounds cost: 60 kB
MOST_CHUNKS = 1024
MOST_ELEMENTS = 2**31  # of one block; beyond, JAX's default indices cannot reach


Copies = Mapping[tuple[str, Bounds, str], LocalCopy]  # by leaf, bounds and holder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """Two copies of one block that differ.

    Attributes:
        leaf, bounds: of which leaf, which block.
        holders: as `host/device`; the copy that is right first, if that is known.
    """

    leaf: Leaf
    bounds: Bounds
    holders: tuple[str, str]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.bounds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Search:
    """A pair, and how far it is narrowed down: the first differing element is among `size` elements from `start` on.

    Attributes:
        room: bytes that either holder may post in a round.
        counts: bad chunks, chunks, and elements of a chunk in the first round.
    """

    pair: Pair
    start: int
    size: int
    room: int
    counts: tuple[int, int, int] | None = None

    @property
    def is_last(self) -> bool:
        """Whether what remains is little enough to be compared element by element."""
        return self.size * element_bytes(self.pair.leaf) <= self.room

    @property
    def chunk_size(self) -> int:
        """Elements of a chunk in the next round."""
        return 1 if self.is_last else math.ceil(self.size / min(MOST_CHUNKS, self.room // DIGEST_BYTES))

    def read(self, copy: LocalCopy) -> bytes:
        """What a holder posts in the next round."""
        if self.is_last:
            return copy.elements(self.start, self.size)
        return copy.chunks(self.start, math.ceil(self.size / self.chunk_size), self.chunk_size)


def localise(pairs: Sequence[Pair], copies: Copies, exchange: Exchange) -> list[Difference | None]:
    """Finds the first element in which each pair differs; every rank must call it with the same pairs.

    Three rounds for 100 MB. In each a host posts some `ROUND_BYTES`: fingerprints, and at last a few elements.

    Args:
        pairs: what to look at.
        copies: those that are in this process.
        exchange: messages between the ranks.

    Returns:
        For each pair the difference, or None if the block is too large.

    Raises:
        TimeoutError: naming the ranks that did not take part.
    """
    room = _room(pairs)
    found: list[Difference | None] = [None] * len(pairs)
    searches = {
        number: _Search(pair=pair, start=0, size=math.prod(pair.shape), room=room)
        for number, pair in enumerate(pairs)
        if math.prod(pair.shape) < MOST_ELEMENTS
    }
    while searches:
        posted: dict[str, str] = {}
        for message in exchange.all_gather("replica search", _read(searches, copies)):
            posted |= message
        following = {}
        for number, search in searches.items():
            ours, theirs = (base64.b64decode(posted[f"{number}/{side}"]) for side in (0, 1))
            if search.is_last:
                found[number] = _difference(search, ours, theirs)
            else:
                following[number] = _narrow(search, ours, theirs)
        searches = following
    return found


def _room(pairs: Sequence[Pair]) -> int:
    """Bytes that a holder may post for one pair, so that no host posts more than `ROUND_BYTES` in base64."""
    hosts = collections.Counter(holder.rpartition("/")[0] for pair in pairs for holder in pair.holders)
    return max(2 * DIGEST_BYTES, ROUND_BYTES * 3 // 4 // max(hosts.values(), default=1))


def _read(searches: Mapping[int, _Search], copies: Copies) -> dict[str, str]:
    posts = {}
    for number, search in searches.items():
        for side, holder in enumerate(search.pair.holders):
            copy = copies.get((search.pair.leaf.path, search.pair.bounds, holder))
            if copy is not None:
                posts[f"{number}/{side}"] = base64.b64encode(search.read(copy)).decode()
    return posts


def _bad_rows(ours: bytes, theirs: bytes, row_bytes: int) -> list[int]:
    rows = [np.frombuffer(data, np.uint8).reshape(-1, row_bytes) for data in (ours, theirs)]
    return [int(row) for row in np.flatnonzero((rows[0] != rows[1]).any(axis=1))]


def _narrow(search: _Search, ours: bytes, theirs: bytes) -> _Search:
    """The search among the elements of the first chunk that differs."""
    size, bad = search.chunk_size, _bad_rows(ours, theirs, DIGEST_BYTES)
    skipped = bad[0] * size
    return dataclasses.replace(
        search,
        start=search.start + skipped,
        size=min(size, search.size - skipped),
        counts=search.counts or (len(bad), math.ceil(search.size / size), size),
    )


def _difference(search: _Search, ours: bytes, theirs: bytes) -> Difference:
    leaf, width = search.pair.leaf, element_bytes(search.pair.leaf)
    bad = _bad_rows(ours, theirs, width)
    position = np.unravel_index(search.start + bad[0], search.pair.shape)
    elements = [data[bad[0] * width : (bad[0] + 1) * width] for data in (ours, theirs)]
    changed = as_number(leaf, elements[0]) ^ as_number(leaf, elements[1])
    bad_chunks, num_chunks, chunk_elements = search.counts or (len(bad), search.size, 1)
    return Difference(
        holders=search.pair.holders,
        index=tuple(start + int(place) for (start, _), place in zip(search.pair.bounds, position, strict=True)),
        bits=tuple(bit for bit in range(element_bits(leaf)) if changed >> bit & 1),
        hexes=(as_hex(leaf, elements[0]), as_hex(leaf, elements[1])),
        values=(as_value(leaf, elements[0]), as_value(leaf, elements[1])),
        bad_chunks=bad_chunks,
        num_chunks=num_chunks,
        chunk_elements=chunk_elements,
    )
