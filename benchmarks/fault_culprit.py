"""Whether a report names the right culprit, where a regular expression cannot tell: pure functions."""

import re
from collections.abc import Callable, Mapping

from fault_cases import CLUSTER, COUNTS, DEVICES_PER_HOST, OTHER_LAUNCH, Injection
from fault_evidence import Evidence

Check = Callable[[Injection, str, Evidence], list[str]]
WRONG_PRECISION = "bfloat16"  # what `other-env` makes of the default, "highest"
MORE = re.compile(r"\n  and \d+ more$", re.MULTILINE)  # below the leaves that are shown
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
    "skip-collective": _fewer_launches,
    "other-env": _own_precision,
    "slow": _slow_rank,
    "corrupt-checkpoint": _skipped_checkpoint,
    "disk-full": _no_space,
    "flip-bit": _flipped_there,
}
