"""Whether a run ended as promised, from what it has left: pure functions of texts and events, without a cluster.

What the user is told is judged by the sentence of the fault alone: other lines are on every terminal, hints among them.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fault_cases import CLUSTER, COUNTS, DEVICES_PER_HOST, Case, Injection

Event = Mapping[str, Any]
Check = Callable[[Injection, str, "Evidence"], list[str]]
ATTEMPTS = {"recovers": 2, "goes-on": 1, "refused": 1, "resumed-by-hand": 2}
WRONG_PRECISION = "bfloat16"  # what `other-env` makes of the default, "highest"
HOLDER = re.compile(r"([\w-]+)/(memory|cpu:\d+)")


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
        left: processes of it that still run, in words.
    """

    commands: Sequence[Said] = ()
    job: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    events: Sequence[Event] = ()
    reports: Sequence[Event] = ()
    left: Sequence[str] = ()

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one run ended.

    Attributes:
        number: in the plan.
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
    problems += _too_late("reported", report_s, case.report_s, slack)
    problems += _too_late("a new step came", new_s, case.next_s, slack)
    problems += [f"left: {what}" for what in evidence.left]
    return Outcome(
        number=number,
        kind=case.kind,
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


def seconds_to_steps(evidence: Evidence) -> tuple[float | None, float | None]:
    """Seconds from the first report of a failure to the next step, and to one that had not been made before."""
    failed = evidence.of("attempt-failed")
    if not failed:
        return None, None
    at = failed[0]["at"]
    before = max((row["step"] for row in evidence.reports if row["at"] <= at), default=0)
    last = max((row["step"] for row in evidence.reports), default=0)
    after = [(row["at"] - at, row["step"]) for row in evidence.reports if row["at"] > at]
    new = [seconds for seconds, step in after if step > before or step == last]
    return (after[0][0] if after else None), (new[0] if new else None)


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


# -- what a regular expression cannot tell


def _fewer_launches(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """Who has left out a launch has made fewer than the other by the report of the same step."""
    found = re.search(COUNTS, told)
    if found is None:
        return [f"the report names no laggard: {told!r}"]
    numbers = {int(rank): int(number) for rank, number in re.findall(r"rank (\d+) (\d+)", found[0])}
    if min(numbers, key=lambda rank: numbers[rank]) != injection.rank or len(set(numbers.values())) == 1:
        return [f"by the report rank {injection.rank} launched no fewer: {found[0]!r}"]
    return []


def _own_precision(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """Both are shown, each with its own, and nothing else."""
    shown = dict(re.findall(rf"rank (\d+) \({CLUSTER}-\d+\): (\w+)", told))
    wanted = {str(rank): WRONG_PRECISION if rank == injection.rank else "highest" for rank in (0, 1)}
    lines = [line for line in told.splitlines() if line.startswith("  ")]
    return [] if shown == wanted and len(lines) == 1 else [f"the report shows {lines}, not only {wanted}"]


def _slow_rank(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """The warning is of this rank, none is of another, and it is shown."""
    named = [rank for event in evidence.of("watchdog") if event["finding"] == "slow" for rank in event["ranks"]]
    if named != [injection.rank]:
        return [f"ranks {named} are called slow, and rank {injection.rank} is"]
    note = f"! rank {injection.rank} on host {CLUSTER}-{injection.rank} is slow"
    return [] if note in evidence.commands[0].printed else ["the warning was not shown"]


def _skipped_checkpoint(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """The step that was damaged is named and skipped for an older one, because it is damaged."""
    damaged = [event["step"] for event in evidence.of("damaged")]
    skipped = {event["step"]: event["why"] for event in evidence.of("checkpoint-skipped")}
    resumed = [event["step"] for event in evidence.of("resumed")]
    if not damaged:
        return ["no checkpoint was damaged"]
    if damaged[0] not in skipped:
        return [f"checkpoint {damaged[0]} was damaged, and {sorted(skipped)} were skipped; resumed from {resumed}"]
    problems = [f"resumed from step {step}, which is damaged" for step in resumed if step >= damaged[0]]
    if skipped[damaged[0]].startswith("half-written"):
        problems.append(f"checkpoint {damaged[0]} was skipped for another reason: {skipped[damaged[0]]!r}")
    return problems


def _no_space(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """The reason is the system's, and the last good step is the newest that had been committed."""
    event = evidence.of("checkpoint-failed")[0]
    committed = [saved["step"] for saved in evidence.of("checkpoint") if saved["at"] < event["at"]]
    problems = [] if re.search(r"File too large|No space left", told) else [f"no word of the disk: {told[:200]!r}"]
    if event["last_good"] != max(committed, default=None):
        problems.append(f"the last good step is {max(committed, default=None)}, not {event['last_good']}")
    return problems


def _flipped_there(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """Leaf, device, element and bit are those that were flipped, as far as no step has carried them on since."""
    flipped = evidence.of("flipped")[0]
    step = evidence.of("injected")[0]["step"]
    exact = re.search(rf"replicas differ at step {step}\b", told) is not None
    blocks = re.split(r"\n  (?=\S)", told.partition("leaves:")[2])[1:]
    mine = [
        block for block in blocks if _leaf(block).endswith(f"/{flipped['leaf']}") or _leaf(block) == flipped["leaf"]
    ]
    problems = [f"{_leaf(block)} has another culprit than device {injection.place}"
                for block in blocks if not _sets_apart(block, injection.place)]  # fmt: skip
    if exact and (len(blocks) != 1 or not mine):
        problems.append(f"{[_leaf(block) for block in blocks]} are named, and {flipped['leaf']} was flipped")
    if exact and mine:
        element, bit = list(flipped["element"]), flipped["bit"]
        found = re.search(r"first at \[([\d, ]*)\]: .*?, bits? ([\d, ]+); ", mine[0])
        if found is None:
            problems.append("no element is named")
        else:
            place = [int(word) for word in found[1].split(",") if word.strip()]
            bits = [int(word) for word in found[2].split(",")]
            # Of a typed key each word is an element: the last index is the word's.
            expected = [element, [bit]] if len(place) == len(element) else [[*element, bit // 32], [bit % 32]]
            if [place, bits] != expected:
                problems.append(f"element {place} bits {bits} are named; element {element} bit {bit} was flipped")
    return problems


def _leaf(block: str) -> str:
    return block.strip().partition(": ")[0].partition("[")[0]


def _sets_apart(block: str, device: int) -> bool:
    """Whether the vote sets this device's copy apart, and calls nobody else's wrong."""
    first = block.splitlines()[0]
    culprit = first.partition("; culprit: ")[2]
    if culprit:
        return [_is_of(holder, device) for holder in HOLDER.findall(culprit)] == [True]
    groups = [HOLDER.findall(group) for group in first.partition("; culprit")[0].split(" against ")]
    return any(any(_is_of(holder, device) for holder in group) for group in groups)


def _is_of(holder: tuple[str, str], device: int) -> bool:
    host, place = holder
    number = device % DEVICES_PER_HOST if place == "memory" else int(place.partition(":")[2]) % DEVICES_PER_HOST
    return host == f"{CLUSTER}-{device // DEVICES_PER_HOST}" and number == device % DEVICES_PER_HOST


SPECIAL: Mapping[str, Check] = {
    "skip-collective": _fewer_launches,
    "other-env": _own_precision,
    "slow": _slow_rank,
    "corrupt-checkpoint": _skipped_checkpoint,
    "disk-full": _no_space,
    "flip-bit": _flipped_there,
}
