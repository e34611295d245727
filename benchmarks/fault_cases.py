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
        "model=gaussian", "num_chains=12", "num_warmup=20", "num_draws=20", "draws_per_dispatch=2",
    ),
}  # fmt: skip
NUM_STEPS = 40
REPORT_EVERY = 2  # steps: a dispatch of each of them
EVAL_EVERY = 20  # of the transformer
CHECKPOINT_EVERY = 8
CLUSTER, NUM_HOSTS, DEVICES_PER_HOST = "faults", 2, 2


# The ranks run on until there is another supervisor, which takes a second or two.
LONGER: Mapping[str, tuple[str, ...]] = {
    "transformer": ("steps=160",),
    "sharded-mcmc": ("num_draws=90",),
    "independent-chains": ("num_draws=240", "num_leapfrog_steps=2000"),
}
# A slow rank is told of when ten seconds have been measured: these are long enough on a machine twice as quick as those
# tried so far, and it sleeps for most of them.
# Chains are computed ahead of the host, which is what is slowed: only where they meet, to save, does it show.
LONGEST: Mapping[str, tuple[str, ...]] = {
    "transformer": ("steps=240",),
    "sharded-mcmc": ("num_draws=160",),
    "independent-chains": ("num_draws=480", "num_leapfrog_steps=2000"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of fault and what must come of it.

    Attributes:
        kind: as `--inject` names it.
        special: what sets it apart from another case of its kind.
        where: `rank`, `host` or `device`, or nothing.
        options: further words of the fault.
        ends: `recovers` (a further attempt, the calm run's bits), `refused` (by the first attempt, without a result),
            `goes-on` (the first attempt succeeds with the calm run's bits), or `resumed-by-hand` (the cluster is gone;
            after `up`, `submit --resume` ends with the calm run's bits).
        report: how the sentence that the user is told must begin, as a regular expression in which `{rank}` and
            `{host}` are those that were hit: only the fault itself and only the right culprit can match it.
        event: type of the event that tells of it, where the attempt does not end; `report` is looked for in its words.
        skips: workloads that cannot show it, with the reason.
        report_s: the report must come within so many seconds of the fault; None: no bound is promised.
        next_s: from the report to a step that had not been made before; None: no bound is promised.
        min_hosts: of the cluster. A host that comes back late is waited for, as on fewer hosts the bits may be others.
        spares: of the cluster.
        steps: of which the fault's is drawn.
        settings: of the workloads, instead of the small ones' of the same names.
    """

    kind: str
    special: str = ""
    where: str = "rank"
    options: str = ""
    ends: str = "recovers"
    report: str
    event: str = "attempt-failed"
    skips: Mapping[str, str] = dataclasses.field(default_factory=dict)
    report_s: float | None = 2.0
    next_s: float | None = None
    min_hosts: int = 2
    spares: int = 0
    steps: Sequence[int] = range(1, NUM_STEPS - 4)
    settings: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.kind} {self.special}".strip()


NO_COLLECTIVE = {"independent-chains": "its programs never span processes"}
OTHER_LAYOUT = {
    "transformer": "on fewer hosts its bits are others (within the stated tolerance)",
    "sharded-mcmc": "on fewer hosts its bits are others (within the stated tolerance)",
}
ANY_LAYOUT = {"independent-chains": "it goes on with fewer hosts"}
HANG_S = 10.0  # max(10 s, 5 x median step)
BACK_S = 3.0  # a dead process: from the report to the next useful step
RANK = r"rank {rank} on host {host} "
# Two ranks have no majority, so each shows what it has; who raised first is no culprit.
RAISED = r"(rank \d+ on host \S+|ranks \d+ on [^:]* each) raised %s( during '[^']*')?: "
IN_ORDERS = RAISED % "LaunchOrderError" + "ranks have launched programs in different orders"
LAUNCHED = rf"(ranks have launched different programs|{IN_ORDERS}): "
OTHER_LAUNCH = r"launch \d+: rank 0 launched '(?P<mine>[^']*)' where rank 1 launched '(?!(?P=mine)')(?P<other>[^']*)'"
COUNTS = r"launches at the report of step \d+: rank \d+ \d+, rank \d+ \d+"

CASES: Sequence[Case] = (
    Case(kind="kill", report=RANK + r"was killed by signal 9 \(SIGKILL\)", next_s=BACK_S),
    Case(
        kind="kill",
        special="while it saves",
        report=RANK + r"was killed by signal 9 \(SIGKILL\)",
        next_s=BACK_S,
        # Just after a save has begun, which goes on in the background: nobody can tell whether it will be committed.
        steps=range(CHECKPOINT_EVERY + REPORT_EVERY, NUM_STEPS - 4, CHECKPOINT_EVERY),
    ),
    Case(kind="raise", report=RANK + r"raised RuntimeError: raised by --inject at step {step}\b", next_s=BACK_S),
    Case(kind="exit", report=RANK + r"ended with exit code 3\b", next_s=BACK_S),
    Case(kind="oom", report=RANK + r"raised MemoryError: .*memory ran out, with \d", report_s=10.0),
    Case(
        kind="freeze",
        report=RANK + r"(has said nothing for|made no progress for) .*its process is stopped \(state T\)",
        report_s=HANG_S,
    ),
    Case(kind="sleep", report=RANK + r"made no progress for .*; rank {rank} is at \S+:\d+ in ", report_s=HANG_S),
    Case(kind="kill-agent", where="host", report=RANK + "was lost", report_s=5.0),
    Case(
        kind="kill-supervisor",
        where="",
        report=r"the supervisor was ended and started again$",
        report_s=None,
        settings=LONGER,
    ),
    Case(
        kind="corrupt-checkpoint",
        report=RANK + r"was killed by signal 9 \(SIGKILL\)",
        # One must have been committed before it can be damaged.
        steps=range(2 * CHECKPOINT_EVERY + 4, NUM_STEPS - 4),
    ),
    Case(kind="disk-full", ends="goes-on", event="checkpoint-failed", report=r"rank {rank}: ", report_s=None),
    Case(
        kind="flip-bit",
        where="device",
        report=RAISED % "ReplicaDivergenceError" + r"replicas differ at step \d+",
        report_s=None,
    ),
    Case(
        kind="slow",
        options="factor=4",
        ends="goes-on",
        event="watchdog",
        report=r"is slow: .* \d+\.\d times the median of the others",
        report_s=None,
        steps=range(1, 10),
        settings=LONGEST,
    ),
    Case(kind="skip-collective", ends="refused", report=LAUNCHED, skips=NO_COLLECTIVE, report_s=HANG_S),
    Case(
        kind="swap-programs",
        ends="refused",
        report=LAUNCHED + OTHER_LAUNCH,
        skips=NO_COLLECTIVE,
        report_s=HANG_S,
    ),
    Case(
        kind="other-program",
        ends="refused",
        report=RAISED
        % "ProgramMismatchError"
        + r"program \w+: rank 0 and rank 1 differ; nothing has run\. First difference, line \d+:\n"
        r"  rank 0 on faults-0: (?P<line>.*)\n  rank 1 on faults-1: (?!(?P=line)\n)",
        skips=NO_COLLECTIVE,
        report_s=HANG_S,
    ),
    Case(
        kind="other-env",
        ends="refused",
        report=RAISED % "EnvironmentMismatchError"
        + r"the hosts do not run in the same environment; nothing has run:\n  option jax_default_matmul_precision: ",
        report_s=None,
    ),
    Case(kind="kill-raylet", where="host", report=RANK + "was lost", skips=OTHER_LAYOUT, report_s=25.0, min_hosts=1),
    Case(
        kind="kill-raylet",
        special="with a spare",
        where="host",
        report=RANK + "was lost",
        skips=ANY_LAYOUT,
        report_s=25.0,
        spares=1,
    ),
    Case(
        kind="kill-holder", where="", ends="resumed-by-hand", report=rf"cluster '{CLUSTER}' has died: ", report_s=None
    ),
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

    @property
    def due(self) -> int:
        """The step at which it happens: that of the first report at or after the one it is asked for."""
        return -(-self.step // REPORT_EVERY) * REPORT_EVERY

    @property
    def settings(self) -> tuple[str, ...]:
        """As `--set` takes them."""
        return small_settings(self.workload, self.case.settings)

    @property
    def rank(self) -> int:
        """The rank that was hit, or that makes the fault happen."""
        return self.place // DEVICES_PER_HOST if self.case.where == "device" else self.place

    @property
    def report(self) -> str:
        """The case's, of this place."""
        named = {"{rank}": self.rank, "{host}": f"{CLUSTER}-{self.rank}", "{step}": self.step}
        text = self.case.report
        for field, value in named.items():
            text = text.replace(field, str(value))
        return text


def small_settings(workload: str, changed: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The workload's in `WORKLOADS`, with those of `changed` in place of the ones of the same names."""
    given = [*WORKLOADS[workload], *changed.get(workload, ())]
    return tuple(f"{key}={value}" for key, value in dict(setting.split("=") for setting in given).items())


def plan(times: int, seed: int = SEED) -> list[Injection]:
    """Every case on every workload, so many times each, at seeded steps and places.

    Args:
        times: of each pair of case and workload.
        seed: of steps and places.
    """
    draw = random.Random(seed)
    injections = []
    for case in CASES:
        for workload in WORKLOADS:
            if workload in case.skips:
                continue
            for _ in range(times):
                count = NUM_HOSTS * DEVICES_PER_HOST if case.where == "device" else NUM_HOSTS if case.where else 1
                place = draw.randrange(1 if case.kind == "kill-raylet" else 0, count)  # the head's is the cluster's end
                if case.kind == "disk-full" and workload == "independent-chains":
                    place = 0  # who has gathered all chains and writes them; the others write nothing
                step = draw.choice(case.steps)
                injections.append(Injection(case=case, workload=workload, step=step, place=place))
    return injections


def sample(injections: Sequence[tuple[int, Injection]], size: int) -> list[tuple[int, Injection]]:
    """Every case once, then a seeded sample of the rest, `size` runs in all (at least one a case), in their order.

    Args:
        injections: with their numbers.
        size: how many.
    """
    draw = random.Random(SEED)
    shuffled = list(injections)
    draw.shuffle(shuffled)
    first = {injection.case.name: number for number, injection in reversed(shuffled)}
    rest = [number for number, _ in shuffled if number not in first.values()]
    chosen = {*first.values(), *rest[: max(0, size - len(first))]}
    return [(number, injection) for number, injection in injections if number in chosen]
