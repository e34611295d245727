"""The first line in which the texts of two ranks differ, found with a few small messages whatever the texts' size."""

import dataclasses
import hashlib

from workloads.exchange import Exchange

SHOWN_CHARACTERS = 240  # of a line; a line with a large constant may have millions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two texts part.

    Attributes:
        line: its number, from 1.
        lines: what each of the two ranks has there, cut to `SHOWN_CHARACTERS` around the first differing character.
    """

    line: int
    lines: tuple[str, str]


def first_difference(exchange: Exchange, text: str, pair: tuple[int, int]) -> Difference:
    """Bisects by digests of prefixes; every rank of the exchange must call it, with the same pair.

    Args:
        exchange: of the ranks that compare; takes about log2(characters) rounds of 64 bytes a rank.
        text: this rank's.
        pair: the two ranks whose texts differ.
    """
    one, other = (exchange.ranks.index(rank) for rank in pair)
    lengths = exchange.all_gather("length", len(text))
    equal, differing = 0, min(lengths[one], lengths[other]) + 1
    while differing - equal > 1:
        middle = (equal + differing) // 2
        digests = exchange.all_gather("prefix", hashlib.sha256(text[:middle].encode()).hexdigest())
        if digests[one] == digests[other]:
            equal = middle
        else:
            differing = middle
    # The number too: another rank's text may have other lines before, or none.
    shown = exchange.all_gather("line", [text.count("\n", 0, equal) + 1, _line_at(text, equal)])
    return Difference(line=shown[one][0], lines=(shown[one][1], shown[other][1]))


def _line_at(text: str, position: int) -> str:
    """The line around a position, shortened on both sides if it is long."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)]
    if len(line) <= SHOWN_CHARACTERS:
        return line.strip()
    first = max(0, position - start - SHOWN_CHARACTERS // 2)
    return f"{'...' if first else ''}{line[first : first + SHOWN_CHARACTERS]}...".strip()
