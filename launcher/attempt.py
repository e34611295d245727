"""What an agent needs to know to run one rank of one attempt of a job, and what it answers."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.certificates import RankCertificate
from launcher.command import Command
from launcher.faults import Fault
from launcher.job import JobSpec

AGENT_RESTARTED = "the agent of this host was ended and started again"
ANSWER = "spmd-launch answers: "  # where a process that runs the user's code too says what it was asked


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankTask:
    """One rank of one attempt.

    Attributes:
        attempt_id: unique for ever; an old and a new incarnation never meet under it.
        job: name of the job.
        attempt: its number, 1 for the job's first.
        resume: start from the newest good checkpoint, if there is one.
        rank: this host's place in the order of hosts.
        num_ranks: how many hosts take part.
        workload: as registered.
        settings: `{parameter: text}` as the user gave them, file parameters among them.
        files: `{parameter: (sha256, file name)}`: which shipped file each file parameter means.
        seed, checkpoint_every, check_every: as in `JobSpec`.
        jax_config: `{option: value}` set before anything else.
        keep, program_barrier, faults: as in `JobSpec`.
        code_digest: which copy of our packages to run.
        storage: folder or URL of this job's checkpoints.
        watch_launches: as in `JobSpec`.
        own_disk: `storage` lies on the head's disk, which no other host reaches: each keeps its files on its own disk,
            and its agent copies them there.
        replay: `step` and `blocks` whose fingerprints to tell there, see `launcher.replay`; None: nothing is asked.
        environment: variables of this rank in this attempt, see `cluster.slices.rank_variables`.
        certificate: what the rank shows its peers; added when its agent has asked for it.
        command: what runs instead of the workload, with the values of all its variables.
        profile: `session` and `steps` of a profile to take, see `launcher.rank.profile.StepProfiler`; None: of none.
    """

    attempt_id: str
    job: str
    attempt: int
    resume: bool
    rank: int
    num_ranks: int
    workload: str
    settings: Mapping[str, str]
    files: Mapping[str, tuple[str, str]]
    seed: int
    checkpoint_every: int | None
    check_every: int
    keep: int
    program_barrier: bool
    faults: Sequence[Mapping[str, Any]]
    jax_config: Mapping[str, Any]
    code_digest: str
    storage: str
    watch_launches: bool = False
    own_disk: bool = False
    replay: Mapping[str, Any] | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    certificate: RankCertificate | None = None
    command: Command | None = None
    profile: Mapping[str, str] | None = None


def tasks_for(
    spec: JobSpec,
    attempt: int,
    storage: str,
    *,
    environments: Sequence[Mapping[str, str]],
    devices_per_host: int,
    own_disk: bool,
    replay: Mapping[str, Any] | None,
    secrets: Mapping[str, str],
    profile: str | None,
) -> list[RankTask]:
    """What the ranks of one attempt are told, in the order of ranks.

    Args:
        spec: of the job.
        attempt: number of the attempt; it gets a new id each time, even where its number is an old one's.
        storage: folder or URL of the job's checkpoints.
        environments: one a rank, as in `RankTask`.
        devices_per_host: says which rank a fault on a device falls to.
        own_disk, replay: as in `RankTask`.
        secrets: values of the command's secret variables.
        profile: steps to take a profile of, or None.
    """
    attempt_id = f"{spec.name}.{attempt}.{time.time_ns():x}"  # unique for ever, readable in a process list
    faults = [Fault.from_json(fault) for fault in spec.faults]
    command = spec.command
    if command is not None:
        command = dataclasses.replace(command, variables={**command.variables, **secrets})
    return [
        RankTask(
            attempt_id=attempt_id,
            job=spec.name,
            attempt=attempt,
            resume=attempt > 1,
            rank=rank,
            num_ranks=len(environments),
            workload=spec.workload,
            settings=spec.settings,
            files={param: (file.sha256, file.name) for param, file in spec.files.items()},
            seed=spec.seed,
            checkpoint_every=spec.checkpoint_every,
            check_every=spec.check_every,
            keep=spec.keep,
            program_barrier=spec.program_barrier,
            faults=[fault.to_json() for fault in faults if fault.due(rank, attempt, devices_per_host)],
            jax_config=jax_config(spec.config),
            code_digest=spec.code_digest,
            storage=storage,
            watch_launches=spec.watch_launches,
            own_disk=own_disk,
            replay=replay,
            environment=environment,
            command=command,
            profile={"session": f"attempt-{attempt}", "steps": profile} if profile else None,
        )
        for rank, environment in enumerate(environments)
    ]


def jax_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """JAX options that follow from the parameters every workload has: `x64` and `precision`."""
    precision = config.get("precision", "default")
    return {
        "jax_enable_x64": bool(config.get("x64", False)),
        "jax_default_matmul_precision": None if precision == "default" else precision,
    }


@dataclasses.dataclass
class RankStatus:
    """What is known of one rank while it runs."""

    rank: int
    host: str
    pid: int | None = None
    phase: str = "start"
    step: int = 0
    total: int = 0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    result: dict[str, Any] | None = None
    exited: bool = False  # how its process ended is told
    ended: bool = False  # and nothing more comes of it
    heard: int = 0  # events of its agent


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostNews:
    """What an agent answers when it is asked about its rank.

    Attributes:
        events: what happened since the last answer, in order.
        progress: where the rank was when it last said so (`launcher.rank.progress`); None: it has not yet.
        silent_s: seconds since the rank last said anything, by this host's clock.
        state: the kernel's letter for the process (R, S, D, T: stopped...); "" if there is none.
    """

    events: Sequence[Mapping[str, Any]] = ()
    progress: Mapping[str, Any] | None = None
    silent_s: float = 0.0
    state: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentMade:
    """What an agent answers when it was told to make a job's environment.

    Attributes:
        versions: of each package in it, by name.
        error: the last that was said, if it could not be made.
        seconds: it took.
    """

    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What one host is made of, as its agent found it: a row of the parity table.

    Attributes:
        host: its name.
        versions: installed packages, see `launcher.environment.versions`.
        code_digest: of the copy of our packages there.
        flags: XLA_FLAGS and JAX_* as a rank will see them.
        num_devices: as JAX counts them there; -1 if the probe failed.
        device_kind: as JAX names them; the probe's error text if it failed.
        hostname: and `resolves_to`, the address that it resolves to there.
        clock: seconds since the epoch, asked of all hosts at the same moment.
        processor: see `workloads.processor`; '' where it is not known.
    """

    host: str
    versions: Mapping[str, str]
    code_digest: str
    flags: Mapping[str, str]
    num_devices: int
    device_kind: str
    hostname: str
    resolves_to: str
    clock: float
    processor: str = ""
