"""Whether a fault happened at the step it was asked for, and the report tells of that step: pure functions."""

import re

from fault_cases import CHECKPOINT_EVERY, EVAL_EVERY, REPORT_EVERY, Injection
from fault_evidence import Evidence

DURING = re.compile(r"\bstep (\d+) of \d+")
OTHERS = re.compile(r"; ranks? \d[\d, ]*(and \d+ more )?(waits?|is|are) ")  # from here on others are told of
DIVERGED = re.compile(r"\breplicas differ at step (\d+)")
REPORTED = re.compile(r"\bat the report of step (\d+)")
Span = tuple[re.Pattern[str], int, int]  # what tells a step, the first that it can be, and the last

ENDS_THERE = ("kill", "raise", "exit", "oom", "freeze", "sleep", "kill-agent", "kill-raylet", "corrupt-checkpoint")
NAMES_ITS_STEP = ("kill", "raise", "exit", "oom", "sleep", "corrupt-checkpoint")


def moment_problems(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """What is wrong with the step at which the fault happened, and with the one that the user is told.

    The rank's own word counts (`injected`), or the step that was asked for, where it was lost with who passes it on.

    Args:
        injection: the fault.
        told: the sentence of it.
        evidence: the events, and the ranks' reports.
    """
    if injection.case.kind == "other-env":
        return []  # it is so from the rank's start, whatever the step
    happened = [int(event["step"]) for event in evidence.of("injected") if event["rank"] == injection.rank]
    # Chains have a state that could differ from another only where they meet.
    meets = injection.case.kind == "flip-bit" and injection.workload == "independent-chains"
    problems = []
    if happened and not injection.due <= happened[0] <= (_meeting(injection.due) if meets else injection.due):
        problems.append(f"it happened at step {happened[0]}, and step {injection.step} was asked for")
    told = OTHERS.split(told)[0]
    if injection.case.kind in NAMES_ITS_STEP and not DURING.search(told):
        problems.append("the report tells no step")
    at = happened[0] if happened else injection.due
    heard = _heard_of(injection, evidence)
    for pattern, first, last in _spans(injection, at, heard if injection.case.where == "host" else at):
        found = pattern.search(told)
        if found and not first <= int(found[1]) <= last:
            problems.append(f"the report tells {found[0]!r}, and it can be step {first} to {last} alone")
    for event in evidence.of(injection.case.event):  # one that was under way at the most, or else the next one
        if injection.case.kind == "disk-full" and not at - CHECKPOINT_EVERY <= event["step"] <= _next_meeting(at):
            problems.append(f"the checkpoint of step {event['step']} failed, and the fault happened at step {at}")
    return problems


def _spans(injection: Injection, at: int, heard: int) -> list[Span]:
    """The steps that the sentence of a fault at step `at` can tell; `heard`: the last that the rank has reported.

    A rank that loses its host runs on until it sees that, and its last reports may be lost with the host.
    """
    kind = injection.case.kind
    if kind in ENDS_THERE:
        return [(DURING, min(at, heard) - REPORT_EVERY, max(at, heard))]
    if kind == "flip-bit":
        last = _meeting(at)
        return [(DIVERGED, at, last), (DURING, at, last)]
    if kind == "other-program":
        return [(DURING, at, at + REPORT_EVERY)]
    if kind in ("skip-collective", "swap-programs"):
        last = _next_of_the_same(injection, at)
        return [(REPORTED, last, last), (DURING, at, max(last, _next_meeting(at)))]
    return []


def _next_of_the_same(injection: Injection, at: int) -> int:
    """The report before which the program is due again that was launched before the one of step `at`."""
    validated = injection.workload == "transformer" and at % EVAL_EVERY == 0
    return at + (EVAL_EVERY if validated and injection.case.kind == "skip-collective" else REPORT_EVERY)


def _meeting(at: int) -> int:
    """As `_next_meeting`, or the step `at` itself, if they are due then."""
    return -(-at // CHECKPOINT_EVERY) * CHECKPOINT_EVERY


def _next_meeting(at: int) -> int:
    """The step after `at` at which all ranks compare and save, at the latest."""
    return at - at % CHECKPOINT_EVERY + CHECKPOINT_EVERY


def _heard_of(injection: Injection, evidence: Evidence) -> int:
    """The last step that the rank has reported before the fault was."""
    failed = min((event["at"] for event in evidence.of("attempt-failed")), default=0.0)
    reported = [row for row in evidence.reports if row["rank"] == injection.rank and row["at"] <= failed]
    return max((int(row["step"]) for row in reported), default=0)
