"""What comes of one call of an interactive gang, as its ranks answer or do not: pure decisions."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.error_text import named

STANDING_S = 10.0  # for so long ranks may wait in a call that another one has left by an exception
OWN_SHARE = 0.2  # a rank that uses this part of the time for itself does not wait


@dataclasses.dataclass
class Standing:
    """For how long ranks that are still in a call have done nothing but wait, since another one has raised.

    Attributes:
        since_s: by the observer's clock.
        own_s: seconds of their own that they had used then, by rank.
    """

    since_s: float
    own_s: Mapping[int, float]

    def stood_s(self, now_s: float, own_s: Mapping[int, float]) -> float:
        """Looks again: if one of them has done something of its own, it is counted from now.

        Args:
            now_s: by the observer's clock.
            own_s: of the ranks that are still in the call.
        """
        elapsed_s = now_s - self.since_s
        used_s = max((used - self.own_s.get(rank, used) for rank, used in own_s.items()), default=0.0)
        if elapsed_s >= STANDING_S / 2 and used_s > OWN_SHARE * elapsed_s:
            self.since_s, self.own_s = now_s, own_s
            return 0.0
        return elapsed_s


def part_ways(answers: Sequence[Mapping[str, Any]]) -> str:
    """Why ranks that have all answered cannot go on together; "" if they can.

    Each must have launched the same programs that span hosts, and met the others as often: where one has left a call
    early, by an exception, its next ones would be taken for those that it has left out.

    Args:
        answers: of the ranks in their order, with `place`: number of launches, their digest, number of meetings.
    """
    for part, what in ((0, "launched different numbers of programs that span hosts"), (2, "met unequally often")):
        ranks: dict[int, list[int]] = {}
        for rank, answer in enumerate(answers):
            ranks.setdefault(answer["place"][part], []).append(rank)
        if len(ranks) > 1:
            counts = ", ".join(f"{named(which)}: {count}" for count, which in ranks.items())
            return f"the ranks have {what} ({counts}): their next ones would not belong together"
    if len({answer["place"][1] for answer in answers}) > 1:
        return "the ranks have launched different programs: their next ones would not belong together"
    return ""
