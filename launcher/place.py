"""Where a rank is in its program, told by its events: the rank counts them, and so may whoever hears them.

Ranks of one program pass the same places, so the one with the least place is the one that the others wait for.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from launcher.command import PHASE
from launcher.interactive import CALL, IDLE

MOVING = ("phase", "report")  # types of events that tell where a rank is
# Phases in which ranks start or meet, so that all enter the same ones. A compilation may be of a program of one rank's
# own, and any other phase is the workload's.
COMMON = (
    "start", "import", "rendezvous", "environment", "load", "restore", "checkpoint", "gather", "replica", "agree",
    PHASE, IDLE, CALL,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank is.

    Attributes:
        moves: common phases entered and left so far: this orders ranks first.
        reports: reports so far: this orders ranks in the same phase. A rank that has nothing to compute may make fewer.
        detours: phases entered and left that other ranks need not enter, since the last move, report or launch: this
            orders ranks that have launched equally much. They count no longer than that, or a rank that has compiled
            something alone would be ahead for good, and another be blamed when it stands.
        events: that have told where it is, so far: of two accounts the one with more is the later.
        phase: what it does, as `run` or `compile train`.
        step, total: as it last reported.
    """

    moves: int = 0
    reports: int = 0
    detours: int = 0
    events: int = 0
    phase: str = "start"
    step: int = 0
    total: int = 0

    def after(self, event: Mapping[str, Any]) -> "Place":
        """Where the rank is from this event on, which is one of `MOVING`.

        A phase that has `aside` is neither a move nor a detour: no rank enters it because of where it is.
        """
        events = self.events + 1
        if event["type"] == "report":
            told = {"reports": self.reports + 1, "step": event["step"], "total": event["total"]}
            return dataclasses.replace(self, events=events, detours=0, **told)
        phase = event["phase"]
        if event.get("aside", False):
            return dataclasses.replace(self, events=events, phase=phase)
        entered_or_left = self.phase if phase == "run" else phase
        if entered_or_left.partition(" ")[0] in COMMON:
            return dataclasses.replace(self, events=events, moves=self.moves + 1, detours=0, phase=phase)
        return dataclasses.replace(self, events=events, detours=self.detours + 1, phase=phase)

    def after_launch(self) -> "Place":
        """Where the rank is once it has launched another program that spans all ranks."""
        return dataclasses.replace(self, detours=0)
