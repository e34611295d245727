"""Which faults of `--inject` have not happened by a job's end, and why: it has not recovered from them. Pure."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.attempt import RankStatus
from launcher.faults import DEVICE, KINDS, NOWHERE, Fault
from launcher.recovery import Cause

# Whose word may die with what they kill: they count as done if an attempt that they were for was lost.
SILENT = ("kill-agent", "kill-raylet", "kill-supervisor", "kill-holder")


@dataclasses.dataclass
class _Attempt:
    """One attempt, as far as the events tell.

    Attributes:
        number: 1 for the first.
        num_hosts, num_devices: it ran on; devices are not known before its ranks have met.
        step: the furthest that is known of it; None: nothing is.
        over: it ended badly, or moved to other hosts.
        lost: it ended because something outside the ranks was lost.
    """

    number: int
    num_hosts: int
    num_devices: int | None = None
    step: int | None = None
    over: bool = False
    lost: bool = False

    def end(self, step: int | None, lost: bool) -> None:
        self.step, self.over, self.lost = step, True, lost

    def has(self, fault: Fault) -> bool:
        """Whether what the fault was to hit was there."""
        where = KINDS[fault.kind].where
        count = self.num_devices if where == DEVICE else self.num_hosts
        return where == NOWHERE or count is None or fault.place < count


def missed_faults(
    faults: Sequence[Mapping[str, Any]], events: Iterable[Mapping[str, Any]], ranks: Sequence[RankStatus]
) -> list[str]:
    """A sentence on the faults that were asked for and have not happened, one for all that have the same reason.

    Args:
        faults: of the job, as in `JobSpec`.
        events: all of the job's so far, as in `events.jsonl`.
        ranks: of its last attempt.
    """
    if not faults:
        return []
    attempts: list[_Attempt] = []
    done: list[Mapping[str, Any]] = []
    for event in events:
        match event["type"]:
            case "attempt":
                if attempts and not attempts[-1].over:  # its end is on no record: its supervisor was gone
                    attempts[-1].end(None, lost=True)
                attempts.append(_Attempt(event["attempt"], len(event["hosts"])))
            case "joined" if attempts:
                attempts[-1].num_devices = event["num_devices"]
            case "attempt-failed" | "moved" if attempts:
                attempts[-1].end(event["step"], lost=event.get("cause") == Cause.PREEMPTED)
            case "port-lost" if attempts:
                attempts[-1].end(0, lost=False)
            case "cluster-lost" if attempts:
                attempts[-1].end(None, lost=True)
            case "injected":
                done.append(event["fault"])
    if attempts and not attempts[-1].over:
        attempts[-1].step = max((rank.step for rank in ranks), default=0)
    missed = [Fault.from_json(fault) for fault in faults if fault not in done]
    told: dict[str, list[str]] = {}
    for fault in missed:
        told.setdefault(_why_not(fault, attempts), []).append(repr(str(fault)))
    return [f"--inject {', '.join(words)} did not happen: {why}" for why, words in told.items() if why]


def _why_not(fault: Fault, attempts: Sequence[_Attempt]) -> str:
    """Why it has not happened, or '' if it may have."""
    meant = [attempt for attempt in attempts if fault.attempt in (None, attempt.number)]
    if fault.kind in SILENT and any(attempt.lost for attempt in meant):
        return ""
    which = "any attempt" if fault.attempt is None else f"attempt {fault.attempt}"
    if not meant:
        return f"it is for {which}, and there were {len(attempts)}"
    there = [attempt for attempt in meant if attempt.has(fault)]
    if there:
        return _why_not_in(max(there, key=lambda attempt: (attempt.step or 0, attempt.number)), fault)
    hosts = max(attempt.num_hosts for attempt in meant)
    return f"there was no {KINDS[fault.kind].where} {fault.place} in {which}, on {hosts} host(s)"


def _why_not_in(attempt: _Attempt, fault: Fault) -> str:
    """Why not in the attempt that came furthest, of those that it was for."""
    at = "" if attempt.step is None else f" at step {attempt.step}"
    if attempt.lost:
        return "it is not known to have happened: what was told of the attempt that was lost may not be on record"
    if attempt.over and fault.attempt is not None:
        return f"it is for attempt {fault.attempt} alone (attempt=any is for each), which ended{at}"
    if attempt.over:
        return f"the furthest attempt ended{at}"
    if (attempt.step or 0) < fault.step:
        return f"the last step reported is {attempt.step}"
    state = " with a state to compare" if fault.kind == "flip-bit" else ""
    return f"the workload did not call context.inject{state} at that step or after it"
