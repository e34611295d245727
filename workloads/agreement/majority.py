"""Who is the odd one? Groups ranks by what they hold, and names a culprit only where a majority does."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vote:
    """Ranks grouped by what they hold.

    Attributes:
        groups: ranks that hold the same; the largest group first, of equal ones the group of the lowest rank.
        has_majority: whether more than half of all ranks are in the first group.
    """

    groups: tuple[tuple[int, ...], ...]
    has_majority: bool

    @property
    def agreed(self) -> bool:
        return len(self.groups) == 1

    @property
    def odd(self) -> tuple[int, ...]:
        """Ranks outside the first group."""
        return tuple(sorted(rank for group in self.groups[1:] for rank in group))

    def __str__(self) -> str:
        """`rank 2 differs from ranks 0, 1`; without a majority nobody is blamed: `rank 0 and rank 1 differ`."""
        if self.has_majority:
            verb = "differs" if len(self.odd) == 1 else "differ"
            return f"{name_ranks(self.odd)} {verb} from {name_ranks(self.groups[0])}"
        return " and ".join(name_ranks(group) for group in self.groups) + " differ"


def vote(values: Mapping[int, str]) -> Vote:
    """Groups ranks by value.

    Args:
        values: `{rank: what it holds}`.
    """
    groups: dict[str, list[int]] = {}
    for rank in sorted(values):
        groups.setdefault(values[rank], []).append(rank)
    ordered = sorted((tuple(group) for group in groups.values()), key=lambda group: (-len(group), group))
    return Vote(groups=tuple(ordered), has_majority=2 * len(ordered[0]) > len(values))


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 1`, or `ranks 0, 2`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
