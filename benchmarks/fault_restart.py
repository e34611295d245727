"""Whether an attempt after a fault went on from the newest good checkpoint, and what was said of it is so."""

import itertools
import re
from collections.abc import Sequence

from fault_cases import Case
from fault_evidence import Event, Evidence

WHERE_FROM = re.compile(r"\battempt (\d+) (?:re)?starts from step (\d+)")


def restart_problems(case: Case, evidence: Evidence) -> list[str]:
    """What is wrong with how the attempts after the first began: lost work, wrong words, or words that nobody saw.

    A commit that was under way when the fault came may count without anybody having told of it: the step that is
    resumed from is the newest that was told, or a newer one.

    Args:
        case: the kind of fault.
        evidence: the events; what commands printed, if there were any.
    """
    events = evidence.events
    starts = [place for place, event in enumerate(events) if event["type"] == "attempt"]
    numbers = [int(events[place]["attempt"]) for place in starts]
    expected = list(range(1, evidence.job["attempt"] + 1))
    problems = [] if numbers == expected else [f"attempts {numbers} are on record, not {expected}"]
    for before, start, end in zip(starts, starts[1:], [*starts[2:], len(events)], strict=False):
        # The supervisor says where the attempt will start before it starts, the ranks where it has.
        problems += _of_attempt(case, evidence, events[:start], events[before:end], int(events[start]["attempt"]))
    return problems


def newest_good(events: Sequence[Event]) -> int:
    """The newest step of which it was told that it is committed, and that no fault has damaged; 0: none."""
    damaged = {event["step"] for event in events if event["type"] == "damaged"}
    return max(_committed(events) - damaged, default=0)


def _committed(events: Sequence[Event]) -> set[int]:
    return {int(event["step"]) for event in events if event["type"] == "checkpoint"}


def _of_attempt(
    case: Case, evidence: Evidence, before: Sequence[Event], around: Sequence[Event], number: int
) -> list[str]:
    """Of one attempt.

    Args:
        case, evidence: as above.
        before: all events until it began.
        around: those from the beginning of the attempt before it to its own end.
        number: its own.
    """
    begun = itertools.dropwhile(lambda event: (event["type"], event.get("attempt")) != ("attempt", number), around)
    resumed = [int(event["step"]) for event in begun if event["type"] == "resumed"]
    if len(resumed) != 1:
        return [f"attempt {number} told {len(resumed)} times what it goes on from"]
    problems = []
    if resumed[0] < newest_good(before):
        problems.append(f"lost work: attempt {number} went on from step {resumed[0]}, not {newest_good(before)}")
    notes = [str(event["message"]) for event in around if event["type"] == "note"]
    said = [match for note in notes for match in WHERE_FROM.finditer(note)]
    if not said and case.ends == "recovers":
        problems.append(f"nothing said where attempt {number} starts")
    problems += [
        f"it was said that {match[0]!r}, and it is attempt {number}" for match in said if match[1] != str(number)
    ]
    promised = max(_committed(before), default=0)
    if case.ends == "recovers" and said and int(said[0][2]) != promised:
        problems.append(f"it was said that {said[0][0]!r}, and the newest checkpoint was {promised}")
    if said and int(said[-1][2]) != resumed[0]:
        problems.append(f"it was said that {said[-1][0]!r}, and it did from step {resumed[0]}")
    printed = " ".join(" ".join(command.printed for command in evidence.commands).split())
    problems += [f"it was not shown: {match[0]!r}" for match in said if evidence.commands and match[0] not in printed]
    return problems
