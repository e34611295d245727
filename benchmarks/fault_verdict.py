"""Whether a run ended as promised, from what it has left: pure functions of texts and events, without a cluster.

What the user is told is judged by the sentence of the fault alone: other lines are on every terminal, hints among them.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from fault_cases import Case, Injection
from fault_culprit import SPECIAL, Check
from fault_evidence import Event, Evidence, seconds_to_steps
from fault_moment import moment_problems
from fault_restart import restart_problems

ATTEMPTS = {"recovers": 2, "goes-on": 1, "refused": 1, "resumed-by-hand": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one run ended.

    Attributes:
        number: in the plan.
        kind: name of the case.
        problems: what is not as specified; empty if all is well.
        told: the sentence of the fault that the user was told.
        harmless: a flipped bit was computed over before anybody compared: nothing to report, the calm run's bits.
        report_s: from the fault to the report.
        next_s: from the report to the next step.
        new_s: from the report to a step that had not been made before (to the last one, where all had been made).
    """

    number: int
    kind: str
    workload: str
    fault: str
    problems: tuple[str, ...]
    told: str = ""
    harmless: bool = False
    report_s: float | None = None
    next_s: float | None = None
    new_s: float | None = None


def judge(number: int, injection: Injection, evidence: Evidence, calm_digest: str, slack: float) -> Outcome:
    """Holds a run against what is promised of its case.

    Args:
        number: of the run, in the plan.
        injection: the fault.
        evidence: what is left of it.
        calm_digest: of the same job without a fault.
        slack: how many times the promised seconds it may take.
    """
    case = injection.case
    told = sentence(case, evidence)
    injected = [event for event in evidence.of("injected") if event["rank"] == injection.rank]
    right = _succeeded(evidence) and evidence.job["result"]["result_digest"] == calm_digest
    harmless = case.kind == "flip-bit" and right and not told and bool(injected)
    report_s = _seconds_to_report(injection, evidence, injected)
    next_s, new_s = seconds_to_steps(evidence)
    problems = [*_injection_problems(injection, injected), *_end_problems(case, evidence, right, harmless)]
    if not harmless:
        problems += report_problems(injection, told, evidence)
        problems += moment_problems(injection, told, evidence)
    problems += restart_problems(case, evidence) + _false_alarms(injection, evidence)
    problems += _too_late("reported", report_s, case.report_s, slack)
    problems += _too_late("a new step came", new_s, case.next_s, slack)
    problems += [f"left: {what}" for what in evidence.left]
    return Outcome(
        number=number,
        kind=case.name,
        workload=injection.workload,
        fault=injection.fault,
        problems=tuple(problems),
        told=told,
        harmless=harmless,
        report_s=report_s,
        next_s=next_s,
        new_s=new_s,
    )


def sentence(case: Case, evidence: Evidence) -> str:
    """What tells the user of the fault, without what stands around it; '' if nothing does."""
    if case.ends == "resumed-by-hand":
        return evidence.commands[0].printed.rpartition("error: ")[2].strip()
    words = {"attempt-failed": "message", "checkpoint-failed": "why", "watchdog": "text"}
    return next((str(event[words[case.event]]) for event in evidence.of(case.event)), "")


def report_problems(
    injection: Injection, told: str, evidence: Evidence, special: Mapping[str, Check] | None = None
) -> list[str]:
    """What is wrong with the report: missing, of something else, of another culprit, or not shown (if there was where).

    Args:
        injection: the fault.
        told: the sentence.
        evidence: the events; what commands printed, if there were any.
        special: what to look at besides its words; by default `SPECIAL`.
    """
    case = injection.case
    if not told:
        return ["no report"]
    problems = []
    if not re.match(injection.report, told):
        problems.append(f"the report does not tell of it: {told[:300]!r}; expected {injection.report!r}")
    check = (SPECIAL if special is None else special).get(case.kind)
    problems += check(injection, told, evidence) if check else []
    first = _plain(told.splitlines()[0])
    if case.event == "attempt-failed" and evidence.commands and first not in _plain(evidence.commands[0].printed):
        problems.append(f"the report was not shown: {first!r}")
    blamed = {rank for event in evidence.of("watchdog") if event["fatal"] for rank in event["ranks"]}
    if case.where and case.ends == "recovers" and blamed - {injection.rank}:
        problems.append(f"the watchdog blames ranks {sorted(blamed)}, and rank {injection.rank} was hit")
    return problems


def _false_alarms(injection: Injection, evidence: Evidence) -> list[str]:
    """Warnings of ranks that nothing was done to; that all stand at one place blames nobody."""
    hit = {injection.rank} if injection.case.where else set()
    return [
        f"a false alarm: ranks {event['ranks']} are called {event['finding']!r}: {event['text'][:200]}"
        for event in evidence.of("watchdog")
        if not event["fatal"] and event["finding"] != "together" and set(event["ranks"]) - hit
    ]


def _injection_problems(injection: Injection, injected: Sequence[Event]) -> list[str]:
    """By the job's own record of what was injected where."""
    case = injection.case
    # The word of what kills all may be lost with it, and that of another environment is its difference.
    if not injected and case.kind not in ("kill-agent", "kill-raylet", "kill-holder", "kill-supervisor", "other-env"):
        return [f"the fault did not happen at rank {injection.rank}"]
    asked = (case.kind, injection.place)
    done = [(event["fault"]["kind"], event["fault"]["place"]) for event in injected]
    return [f"{what} was injected, not {asked}" for what in done if what != asked]


def _succeeded(evidence: Evidence) -> bool:
    return evidence.job["state"] == "SUCCEEDED"


def _end_problems(case: Case, evidence: Evidence, right: bool, harmless: bool) -> list[str]:
    job, codes = evidence.job, [said.exit_code for said in evidence.commands]
    refused = case.ends == "refused"
    wanted = "FAILED" if refused else "SUCCEEDED"
    problems = []
    if job["state"] != wanted:
        problems.append(f"{job['state']}, not {wanted}: {job['message'].splitlines()[:1]}")
    elif not refused and not right:
        problems.append("another result than the calm run's: a silent error")
    if refused and (job["result"] is not None or "result_digest" in evidence.commands[0].printed):
        problems.append("a result was accepted")
    expected = [1, 0] if case.ends == "resumed-by-hand" else [1 if refused else 0]
    if codes != expected:
        problems.append(f"exit codes {codes}, not {expected}")
    attempts = 1 if harmless else ATTEMPTS[case.ends]
    if job["attempt"] != attempts:
        why = [event["message"].splitlines()[0] for event in evidence.of("attempt-failed")]
        problems.append(f"{job['attempt']} attempts, not {attempts}: {why}")
    return problems


def _seconds_to_report(injection: Injection, evidence: Evidence, injected: Sequence[Event]) -> float | None:
    """From the word of the fault; where that was lost with who passes it on, from the step just before, at most."""
    told = evidence.of(injection.case.event)
    if not told or injection.case.ends == "resumed-by-hand":
        return None
    steps = [row["at"] for row in evidence.reports if row["rank"] == injection.rank and row["at"] <= told[0]["at"]]
    began = injected[0]["at"] if injected else max(steps, default=None)
    return None if began is None else float(told[0]["at"] - began)


def _too_late(what: str, seconds: float | None, bound_s: float | None, slack: float) -> list[str]:
    if seconds is None or bound_s is None or seconds <= bound_s * slack:
        return []
    return [f"{what} after {seconds:.1f} s, not {bound_s * slack:g}"]


def _plain(text: str) -> str:
    return " ".join(text.split())
