"""What is injected and how the job must end: the table that `faults.py` works through, without running anything."""

import dataclasses
import random
from collections.abc import Mapping, Sequence

SEED = 7

# Small, but real: every workload reaches its last step in seconds and has several checkpoints.
WORKLOADS: Mapping[str, tuple[str, ...]] = {
    "transformer": (
        "steps=40", "steps_per_dispatch=2", "num_layers=2", "width=32", "ff_width=64", "num_heads=2",
        "context_length=32", "eval_every=20", "eval_batches=2", "sample_length=0", "batch_size=8",
    ),
    "sharded-mcmc": (
        "num_warmup=20", "num_draws=20", "num_leapfrog_steps=4", "num_examples=200", "draws_per_dispatch=2",
    ),
    "independent-chains": (
        "model=gaussian", "num_chains=8", "num_warmup=20", "num_draws=20", "draws_per_dispatch=2",
    ),
}  # fmt: skip
NUM_STEPS = 40
CHECKPOINT_EVERY = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of fault and what must come of it.

    Attributes:
        kind: as `--inject` names it.
        where: `rank`, `host` or `device`, or nothing.
        options: further words of the fault.
        ends: `recovers` (a further attempt, the calm run's bits), `refused` (no result; the message has `words`),
            `goes-on` (the first attempt succeeds with the calm run's bits; an event of type `event` tells of it), or
            `resumed-by-hand` (the cluster is gone; after `up`, `submit --resume` ends with the calm run's bits).
        words: that the report must have.
        event: type of the event that must be on record.
        skips: workloads that cannot show it, with the reason.
        report_s: the report must come within so many seconds of the fault; None: no bound is promised.
        min_hosts: of the cluster. A host that comes back late is waited for, as on fewer hosts the bits may be others.
    """

    kind: str
    where: str = "rank"
    options: str = ""
    ends: str = "recovers"
    words: str = ""
    event: str = ""
    skips: Mapping[str, str] = dataclasses.field(default_factory=dict)
    report_s: float | None = 2.0
    min_hosts: int = 2


NO_COLLECTIVE = {"independent-chains": "its programs never span processes"}
OTHER_LAYOUT = {
    "transformer": "on fewer hosts its bits are others (within the stated tolerance)",
    "sharded-mcmc": "on fewer hosts its bits are others (within the stated tolerance)",
}
HANG_S = 15.0  # max(10 s, 5 x median step), and what it takes to read all stacks

CASES: Sequence[Case] = (
    Case(kind="kill", words="killed by signal 9"),
    Case(kind="raise", words="raised by --inject"),
    Case(kind="exit", words="exit code 3"),
    Case(kind="oom", words="MemoryError", report_s=10.0),
    Case(kind="freeze", words="stopped", report_s=HANG_S),
    Case(kind="sleep", words="rank", report_s=HANG_S),
    Case(kind="kill-agent", where="host", words="was lost", report_s=5.0),
    Case(kind="kill-supervisor", where="", words="supervisor was ended", report_s=None),
    Case(kind="corrupt-checkpoint", words="killed by signal 9", event="checkpoint-skipped"),
    Case(kind="disk-full", ends="goes-on", event="checkpoint-failed", report_s=None),
    Case(kind="flip-bit", where="device", words="replicas differ", report_s=None),
    Case(kind="slow", options="factor=4", ends="goes-on", report_s=None),
    Case(kind="skip-collective", ends="refused", words="launched", skips=NO_COLLECTIVE, report_s=HANG_S),
    Case(kind="swap-programs", ends="refused", words="launch", skips=NO_COLLECTIVE, report_s=HANG_S),
    Case(kind="other-program", ends="refused", words="ProgramMismatchError", skips=NO_COLLECTIVE, report_s=HANG_S),
    Case(kind="other-env", ends="refused", words="EnvironmentMismatchError", report_s=None),
    Case(kind="kill-raylet", where="host", words="was lost", skips=OTHER_LAYOUT, report_s=25.0, min_hosts=1),
    Case(kind="kill-holder", where="", ends="resumed-by-hand", report_s=None),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Injection:
    """One run: a case, on a workload, at a step and place."""

    case: Case
    workload: str
    step: int
    place: int

    @property
    def fault(self) -> str:
        """As `--inject` takes it."""
        place = f"{self.case.where}={self.place}" if self.case.where else ""
        return " ".join(f"{self.case.kind} {place} step={self.step} {self.case.options}".split())


def plan(times: int, num_hosts: int, devices_per_host: int, seed: int = SEED) -> list[Injection]:
    """Every case on every workload, so many times each, at seeded steps and places.

    Args:
        times: of each pair of case and workload.
        num_hosts, devices_per_host: what there is to hit.
        seed: of steps and places.
    """
    draw = random.Random(seed)
    injections = []
    for case in CASES:
        for workload in WORKLOADS:
            if workload in case.skips:
                continue
            for _ in range(times):
                count = num_hosts * devices_per_host if case.where == "device" else num_hosts
                place = draw.randrange(1 if case.kind == "kill-raylet" else 0, count)  # the head's is the cluster's end
                # A checkpoint must have been committed before it can be damaged.
                first = 2 * CHECKPOINT_EVERY + 4 if case.kind == "corrupt-checkpoint" else 1
                step = draw.randrange(first, NUM_STEPS - 4)
                if case.kind == "disk-full":
                    place = 0  # who commits; another may have nothing to write
                injections.append(Injection(case=case, workload=workload, step=step, place=place))
    return injections


def sample(injections: Sequence[Injection], size: int) -> list[Injection]:
    """Every case once, then a seeded sample of the rest, `size` runs in all (at least one a case)."""
    draw = random.Random(SEED)
    shuffled = list(injections)
    draw.shuffle(shuffled)
    first = {injection.case.kind: injection for injection in reversed(shuffled)}
    rest = [injection for injection in shuffled if injection is not first[injection.case.kind]]
    return [*first.values(), *rest[: max(0, size - len(first))]]
