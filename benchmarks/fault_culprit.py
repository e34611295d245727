"""Whether a report names the right culprit, where a regular expression cannot tell: pure functions."""

import re
from collections.abc import Callable, Mapping

from fault_cases import CLUSTER, COUNTS, DEVICES_PER_HOST, OTHER_LAUNCH, Injection
from fault_evidence import Evidence

Check = Callable[[Injection, str, Evidence], list[str]]
WRONG_PRECISION = "bfloat16"  # what `other-env` makes of the default, "highest"
MORE = re.compile(r"\n  and (\d+) more$", re.MULTILINE)  # below the leaves that are shown
NEXT_LAUNCH = {"transformer": "train", "sharded-mcmc": "advance"}  # after each report
# `other-program` makes the first constant 1, or 3 where it is 1.
CHANGED = re.compile(r"dense<[13](\.0+(e\+00)?)?>")
HOLDER = re.compile(r"([\w-]+)/(memory|cpu:\d+)")


def _fewer_launches(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """Who has left out a launch has made fewer than the other by the report of the same step.

    Where another launch came before that report, both are shown, and nobody can say which of two is wrong.
    """
    found = re.search(COUNTS, told)
    if found is None:
        return [] if re.search(OTHER_LAUNCH, told) else [f"the report names neither step nor launch: {told!r}"]
    numbers = {int(rank): int(number) for rank, number in re.findall(r"rank (\d+) (\d+)", found[0])}
    if numbers[injection.rank] >= max(numbers.values()):
        return [f"by the report rank {injection.rank} launched no fewer: {found[0]!r}"]
    return []


def _launched_another(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """The rank that was hit has launched another program than the one whose turn it was, the other rank that one."""
    found = re.search(OTHER_LAUNCH, told)
    if found is None or injection.workload not in NEXT_LAUNCH:
        return []  # the report is of something else, which is told already; or nobody knows
    launched = {0: found["mine"], 1: found["other"]}
    usual = NEXT_LAUNCH[injection.workload]
    astray = [rank for rank, program in launched.items() if program.partition(" #")[0] != usual]
    return [] if astray == [injection.rank] else [f"by the report {launched} were launched, and {usual!r} was due"]


def _changed_line(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """The changed line is shown of the rank that compiled another program, the other rank's is as it was."""
    shown = dict(re.findall(rf"^  rank (\d+) on {CLUSTER}-\d+: (.*)$", told, re.MULTILINE))
    changed = [rank for rank, line in shown.items() if CHANGED.search(line)]
    hit = str(injection.rank)
    both = len(changed) == 2 and "dense<3" in shown[hit]
    return [] if changed == [hit] or both else [f"the changed line is shown of ranks {changed}, and {hit} was changed"]


def _stands_with_others_waiting(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """What the other rank waits in is told, and the stack of the one that stands was kept."""
    other = 1 - injection.rank
    problems = [] if re.search(rf"; rank {other} waits in '", told) else [f"no word of what rank {other} waits in"]
    if evidence.stacks is not None:
        kept = evidence.stacks.get(injection.rank, "")
        if not kept.strip() or kept.startswith("no stack"):
            problems.append(f"no stack of rank {injection.rank} was kept: {kept[:100]!r}")
    return problems


def _with_traceback(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """The record has the traceback, to the line that raised."""
    details = "".join(str(event.get("details", "")) for event in evidence.of("attempt-failed")[:1])
    whole = details.startswith("Traceback (most recent call last):") and f"step {injection.step}" in details
    return [] if whole else [f"no traceback that leads to the error: {details[-200:]!r}"]


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
    return _not_shown(f"! rank {injection.rank} on host {CLUSTER}-{injection.rank} is slow", evidence)


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
    return problems + _not_shown(f"! checkpoint of step {damaged[0]} ", evidence)


def _no_space(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """The reason is the system's, and the last good step is the newest that had been committed."""
    event = evidence.of("checkpoint-failed")[0]
    committed = [saved["step"] for saved in evidence.of("checkpoint") if saved["at"] < event["at"]]
    problems = [] if re.search(r"File too large|No space left", told) else [f"no word of the disk: {told[:200]!r}"]
    if event["last_good"] != max(committed, default=None):
        problems.append(f"the last good step is {max(committed, default=None)}, not {event['last_good']}")
    return problems + _not_shown(f"! checkpoint of step {event['step']} ", evidence)


def _not_shown(note: str, evidence: Evidence) -> list[str]:
    """What is no end of an attempt is shown by a note, where anybody followed the job."""
    seen = not evidence.commands or note in evidence.commands[0].printed
    return [] if seen else [f"it was not shown: {note!r}"]


def _flipped_there(injection: Injection, told: str, evidence: Evidence) -> list[str]:
    """Leaf, device, element and bit are those that were flipped, as far as no step has carried them on since."""
    flipped = evidence.of("flipped")[0]
    step = evidence.of("injected")[0]["step"]
    exact = re.search(rf"replicas differ at step {step}\b", told) is not None
    blocks = re.split(r"\n  (?=\S)", MORE.sub("", told.partition("leaves:")[2]))[1:]
    mine = [
        block for block in blocks if _leaf(block).endswith(f"/{flipped['leaf']}") or _leaf(block) == flipped["leaf"]
    ]
    more = MORE.search(told)
    counted = re.search(r"\bin (\d+) of \d+ leaves:", told)
    if not blocks or counted is None or int(counted[1]) != len(blocks) + int(more[1] if more else 0):
        return [f"{len(blocks)} leaves are shown: {told[:300]!r}"]
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
    return any(group and all(_is_of(holder, device) for holder in group) for group in groups)


def _is_of(holder: tuple[str, str], device: int) -> bool:
    host, place = holder
    number = device % DEVICES_PER_HOST if place == "memory" else int(place.partition(":")[2]) % DEVICES_PER_HOST
    return host == f"{CLUSTER}-{device // DEVICES_PER_HOST}" and number == device % DEVICES_PER_HOST


SPECIAL: Mapping[str, Check] = {
    "raise": _with_traceback,
    "freeze": _stands_with_others_waiting,
    "sleep": _stands_with_others_waiting,
    "skip-collective": _fewer_launches,
    "swap-programs": _launched_another,
    "other-program": _changed_line,
    "other-env": _own_precision,
    "slow": _slow_rank,
    "corrupt-checkpoint": _skipped_checkpoint,
    "disk-full": _no_space,
    "flip-bit": _flipped_there,
}
