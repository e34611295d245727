"""What a run with a fault has left: all that is judged."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Said:
    """A command, as the user saw it end."""

    exit_code: int
    printed: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one run has left.

    Attributes:
        commands: `submit`, and `submit --resume` where that was to follow.
        job: its record.
        events, reports: the lines of `events.jsonl` and `metrics.jsonl`.
        stacks: of its first attempt, as they were kept: `{rank: text}`; None: nobody has looked.
        left: processes of it that still run, in words.
    """

    commands: Sequence[Said] = ()
    job: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    events: Sequence[Event] = ()
    reports: Sequence[Event] = ()
    stacks: Mapping[int, str] | None = None
    left: Sequence[str] = ()

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]


def seconds_to_steps(evidence: Evidence) -> tuple[float | None, float | None]:
    """Seconds from the first report of a failure to the next step, and to one that had not been made before."""
    failed = evidence.of("attempt-failed")
    if not failed:
        return None, None
    at = failed[0]["at"]
    before, after = _cut_at_restart(evidence.reports, at)
    reached = max((row["step"] for row in before), default=0)
    last = max((row["step"] for row in evidence.reports), default=0)
    new = [row["at"] - at for row in after if row["step"] > reached or row["step"] == last]
    return (after[0]["at"] - at if after else None), (new[0] if new else None)


def _cut_at_restart(reports: Sequence[Event], failed_at: float) -> tuple[Sequence[Event], Sequence[Event]]:
    """Steps before and after: where a rank goes back, or by the clock (a new supervisor's is a bit behind)."""
    reached: dict[int, int] = {}
    for place, row in enumerate(reports):
        if row["step"] <= reached.get(row["rank"], 0):
            return reports[:place], reports[place:]
        reached[row["rank"]] = row["step"]
    place = next((place for place, row in enumerate(reports) if row["at"] > failed_at), len(reports))
    return reports[:place], reports[place:]
