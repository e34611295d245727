"""What a job is: what was asked for, the states it passes through, and why it ended."""

import dataclasses
import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.command import Command


class JobState(enum.StrEnum):
    """Where a job is in its life. The arrows are in `NEXT_STATES`; nothing else moves."""

    QUEUED = "QUEUED"  # waits for hosts that other jobs hold
    STARTING = "STARTING"  # holds its hosts; processes start and find each other
    RUNNING = "RUNNING"  # every rank runs the workload
    RECOVERING = "RECOVERING"  # an attempt has ended and the next one is being prepared
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        return not NEXT_STATES[self]


NEXT_STATES: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.STARTING, JobState.CANCELLED, JobState.FAILED}),
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.RECOVERING, JobState.FAILED, JobState.CANCELLED}),
    JobState.RUNNING: frozenset({JobState.RECOVERING, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}),
    JobState.RECOVERING: frozenset({JobState.STARTING, JobState.FAILED, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


def check_transition(old: JobState, new: JobState) -> None:
    """Refuses a step that the state machine does not have.

    Raises:
        ValueError: a defect of ours, never of the user.
    """
    if new not in NEXT_STATES[old]:
        raise ValueError(f"a job cannot go from {old} to {new}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputFile:
    """A file of the client's, shipped once per content to every host of the job."""

    name: str
    sha256: str
    num_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What may be asked for of any job, whatever its workload: options of `submit` of the same names.

    Attributes:
        seed: of all random numbers.
        checkpoint_every: steps between checkpoints; 0: only at the end; None: by cost, see
            `workloads.context.Context.save_due`.
        check_every: steps between replica checks; 0: as often as 1 % of the run time allows.
        keep: newest checkpoints that are kept.
        max_failures, max_preemptions, on_divergence: see `launcher.recovery.Policy`.
        program_barrier: whether ranks compare programs before they run them.
        watch_launches: whether launches that do not go through the context are recorded and compared too.
        profile: steps to take a profile of, as `launcher.profile_steps.ProfileSteps.parse` takes them.
    """

    seed: int = 0
    checkpoint_every: int | None = None
    check_every: int = 0
    keep: int = 3
    max_failures: int = 3
    max_preemptions: int = 10
    on_divergence: str = "restore"
    program_barrier: bool = True
    watch_launches: bool = False
    profile: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSpec(JobOptions):
    """What was asked for; written to `job.json` as it is, the options among the rest.

    Attributes:
        name: unique among the jobs in the state folder.
        job_id: unique for ever; a job that is resumed keeps it.
        workload: as registered.
        settings: `{parameter: text}` as the user gave them, without what was left at its default.
        config: every parameter with its value.
        num_hosts: how many hosts, hence ranks.
        faults: asked for with `--inject`, see `launcher.faults.Fault`.
        command: what runs instead of a workload.
        code_digest: of the shipped copy of our packages, see `launcher.code_copy`.
        files: input files by the parameter that names them.
        versions: of the client that submitted, by package.
        submitted: local time, ISO 8601.
    """

    name: str
    job_id: str
    workload: str
    settings: Mapping[str, str]
    config: Mapping[str, Any]
    num_hosts: int
    code_digest: str
    files: Mapping[str, InputFile]
    versions: Mapping[str, str]
    submitted: str
    faults: Sequence[Mapping[str, Any]] = ()
    command: Command | None = None

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "JobSpec":
        files = {param: InputFile(**file) for param, file in value["files"].items()}
        command = Command.from_json(value["command"]) if value.get("command") else None
        return cls(**{**value, "files": files, "faults": tuple(value.get("faults", ())), "command": command})


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended.

    Attributes:
        rank: which.
        host: on which host.
        exit_code: of the process; None if a signal ended it or its host was lost.
        last_words: the last line of its log, beside an exit code.
        signal: number of the signal, if one ended it that was not ours.
        abandoned: beside SIGABRT: JAX has ended it because it had lost its peers, as its log says.
        out_of_memory: whether the kernel killed for want of memory on that host just then; None: it does not say.
        memory: `{"peak_bytes", "host_bytes"}`: the most that the process has had, and what its host has, if known; or
            that of its fullest device, `{"device", "peak_bytes", "device_bytes"}`, where that ran out.
        error: `{"type", "message", "traceback"}` if Python raised, else None; where the error says so, `cause` (see
            `launcher.recovery.Cause`), `suspects`, hosts, and `ranks`, for whom it has waited in vain.
        lost: why nothing is known of its end, if its host cannot be reached.
        hung: what the watchdog found, if the rank was ended because it made no progress.
        differs: where its launches part from the other ranks'.
        phase: what it was doing.
        order: position in the order in which the ends became known; the first has the lowest.
    """

    rank: int
    host: str
    exit_code: int | None = None
    last_words: str = ""
    signal: int | None = None
    abandoned: bool = False
    out_of_memory: bool | None = False
    memory: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    lost: str | None = None
    hung: str | None = None
    differs: str | None = None
    phase: str = ""
    order: int = 0


NAME_RULE = "lower-case letters, digits and '-', starting with a letter or digit, at most 60"


def valid_name(name: str) -> bool:
    return re.fullmatch(r"[a-z0-9][a-z0-9-]{0,59}", name) is not None
