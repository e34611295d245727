"""Faults asked for with `submit --inject "kill rank=1 step=20"`: what can be asked, and what was. Imports no JAX.

They are for users who want to see their own job recover, and for our tests; `launcher.rank.inject` makes them happen,
and `launcher.missed_faults` tells of those that did not.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.errors import UserError
from workloads.params import nearest

WHOLE = re.compile(r"[0-9]{1,15}")
# What the values of options that are numbers look like.
NUMBERS = {
    "seconds": re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?"),
    "factor": re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?"),
    "code": re.compile(r"[0-9]{1,3}"),
    "index": re.compile(r"any|[0-9]{1,15}"),
    "bit": re.compile(r"any|[0-9]{1,3}"),
}
RANK, HOST, DEVICE, NOWHERE = "rank", "host", "device", ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault.

    Attributes:
        meaning: one line.
        where: what it hits: a `rank`, a `host`, a `device`, or the cluster as a whole (empty).
        options: `{key: default}` beyond place, step and attempt.
    """

    meaning: str
    where: str = RANK
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def words(self, name: str) -> str:
        """How it is asked for, but for step and attempt, which every kind takes; options with their defaults."""
        place = [f"{self.where}=N"] if self.where else []
        return " ".join([name, *place, *(f"[{key}={value}]" for key, value in self.options.items())])


KINDS: Mapping[str, Kind] = {
    "kill": Kind(meaning="the rank is killed (SIGKILL)"),
    "freeze": Kind(meaning="the rank is stopped (SIGSTOP)"),
    "raise": Kind(meaning="the rank raises RuntimeError"),
    "exit": Kind(meaning="the rank ends with an exit code", options={"code": "3"}),
    "oom": Kind(meaning="the rank runs out of memory (under a limit of its own)"),
    "sleep": Kind(meaning="the rank sleeps in Python", options={"seconds": "600"}),
    "slow": Kind(meaning="each step takes longer by a factor from then on", options={"factor": "3"}),
    "skip-collective": Kind(meaning="the rank leaves out its next launch of a program that spans all processes"),
    "swap-programs": Kind(meaning="the rank launches another program that spans all processes before its next one"),
    "other-program": Kind(meaning="the rank compiles its next program that spans all processes a bit differently"),
    "other-env": Kind(meaning="the rank runs under another precision from its start, whatever the step"),
    "flip-bit": Kind(
        meaning="one bit of one copy of the state flips; of independent-chains, whose chains have no second copy, in "
        "what the device's host has gathered for the next check or checkpoint",
        where=DEVICE,
        options={"leaf": "any", "index": "any", "bit": "any"},
    ),
    "corrupt-checkpoint": Kind(meaning="16 bits in the newest checkpoint's largest file flip, then the rank is killed"),
    "disk-full": Kind(meaning="the rank's next checkpoint finds no space"),
    "kill-agent": Kind(meaning="the host's agent is killed", where=HOST),
    "kill-raylet": Kind(meaning="the host is lost: its raylet is killed", where=HOST),
    "kill-supervisor": Kind(meaning="the supervisor is killed", where=NOWHERE),
    "kill-holder": Kind(
        meaning="the process that owns the nodes on rank 0's machine is killed: of a local cluster, all of them",
        where=NOWHERE,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault to inject.

    Attributes:
        kind: a key of `KINDS`.
        place: number of the rank, host or (global) device; 0 where the kind hits the cluster.
        step: it happens at the first report at or after this step.
        attempt: in which attempt; None: in each of them.
        options: of the kind, as text, completed with defaults.
    """

    kind: str
    place: int
    step: int
    attempt: int | None
    options: Mapping[str, str]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Fault":
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """As `--inject` takes it, without what is at its default."""
        kind = KINDS[self.kind]
        words = [self.kind, f"{kind.where}={self.place}" if kind.where else "", f"step={self.step}"]
        words += [f"{key}={value}" for key, value in self.options.items() if value != kind.options[key]]
        words += [] if self.attempt == 1 else [f"attempt={self.attempt or 'any'}"]
        return " ".join(word for word in words if word)

    def rank(self, devices_per_host: int) -> int:
        """The rank that makes it happen."""
        return self.place // devices_per_host if KINDS[self.kind].where == DEVICE else self.place

    def due(self, rank: int, attempt: int, devices_per_host: int) -> bool:
        """Whether this rank takes part in it in this attempt."""
        everyone = self.kind == "other-program"  # all compile anew, so that the barrier has something to compare
        return self.attempt in (None, attempt) and (everyone or self.rank(devices_per_host) == rank)


def parse_fault(text: str) -> Fault:
    """Reads one fault, as `kill rank=1 step=20` or `flip-bit device=3 step=30 leaf=params/wte attempt=any`.

    Raises:
        UserError: naming what is wrong, what is allowed, and the nearest match.
    """
    words = text.split()
    if not words or words[0] not in KINDS:
        given = words[0] if words else ""
        known = "".join(f"\n  {kind.words(name)}: {kind.meaning}" for name, kind in KINDS.items())
        raise UserError(
            f"--inject {text!r}: no fault {given!r}{nearest(given, KINDS, {})}\n"
            f"There are, each with step=N, and with attempt=N or any for another attempt than the first:{known}"
        )
    kind = KINDS[words[0]]
    allowed = [*([kind.where] if kind.where else []), "step", "attempt", *kind.options]
    values: dict[str, str] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in allowed or key in values:
            hint = nearest(key, allowed, {}) if key not in allowed else ""
            problem = "is given twice" if key in values else f"is not one of {', '.join(allowed)}{hint}"
            raise UserError(f"--inject {text!r}: {word!r} {problem}")
        values[key] = value
    missing = [key for key in (kind.where, "step") if key and key not in values]
    if missing:
        raise UserError(f"--inject {text!r}: {' and '.join(f'{key}=N' for key in missing)} missing")
    attempt = values.get("attempt", "1")
    for key, value in values.items():
        if key in NUMBERS and not NUMBERS[key].fullmatch(value):
            raise UserError(f"--inject {text!r}: {key}={value} is not a number that fits")
    return Fault(
        kind=words[0],
        place=_whole(text, kind.where, values.get(kind.where, "0")),
        step=_whole(text, "step", values["step"]),
        attempt=None if attempt == "any" else _whole(text, "attempt", attempt),
        options={key: values.get(key, default) for key, default in kind.options.items()},
    )


def check_faults(
    faults: Sequence[Fault], num_hosts: int, devices_per_host: int, owns_ray: bool = True, storage: str = ""
) -> None:
    """Refuses faults for what the job does not have, for a Ray that is not ours, and for files that are no files.

    Args:
        faults: that were asked for.
        num_hosts, devices_per_host: of the job.
        owns_ray: whether the Ray is ours.
        storage: where checkpoints go, a folder or URL.

    Raises:
        UserError: naming the fault and what there is.
    """
    for fault in faults:
        if fault.kind == "corrupt-checkpoint" and "://" in storage:
            raise UserError(
                f"--inject {fault.kind}: it damages files, and the checkpoints of this cluster go to {storage}"
            )
        if not owns_ray and fault.kind in ("kill-raylet", "kill-supervisor", "kill-holder"):
            raise UserError(f"--inject {fault.kind}: the Ray of this cluster is not ours, and others use it")
        where = KINDS[fault.kind].where
        count = num_hosts * devices_per_host if where == DEVICE else num_hosts
        if fault.place >= count:
            raise UserError(f"--inject {fault.kind} {where}={fault.place}: the job has {where}s 0 to {count - 1}")


def _whole(text: str, key: str, value: str) -> int:
    if not WHOLE.fullmatch(value):
        raise UserError(f"--inject {text!r}: {key}={value} is not a whole number")
    return int(value)
