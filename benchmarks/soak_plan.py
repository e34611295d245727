"""What `soak.py` runs and which faults it throws when: pure functions of a seed and of how fast a calm run was."""

import dataclasses
import random
from collections.abc import Mapping, Sequence

GAP_S = (30.0, 60.0)  # from one fault to the next, in seconds of a calm run
TAIL_S = 15.0  # after the last fault, so that the job has something left to do
CHECKPOINT_EVERY_S = 5.0

FROM_OUTSIDE = ("kill", "freeze", "kill-agent", "kill-supervisor", "corrupt-checkpoint")
BY_INJECTION = ("raise", "flip-bit")  # what happens inside a rank, no other process can do


@dataclasses.dataclass(frozen=True, kw_only=True)
class Soaked:
    """A workload as the soak runs it: a report every few tenths of a second, checkpoints of a few MiB.

    Attributes:
        settings: as `--set` takes them, all but the number of steps.
        steps_param: which parameter says how long the job is.
        num_warmup: steps beyond those that the parameter counts.
        dispatch: steps that one call of the compiled program runs.
    """

    settings: Sequence[str]
    steps_param: str
    num_warmup: int
    dispatch: int

    def with_steps(self, steps: int) -> list[str]:
        """The settings of a job that has so many steps, its warm-up among them."""
        return [*self.settings, f"{self.steps_param}={steps - self.num_warmup}"]

    def whole(self, steps: float) -> int:
        """The nearest number of steps that is a whole number of dispatches, at least one."""
        return max(round(steps / self.dispatch), 1) * self.dispatch


WORKLOADS: Mapping[str, Soaked] = {
    "transformer": Soaked(
        settings=(
            "num_layers=2", "width=64", "ff_width=256", "num_heads=4", "context_length=64", "batch_size=16",
            "steps_per_dispatch=5", "eval_every=1000", "eval_batches=2", "sample_length=0",
        ),
        steps_param="steps", num_warmup=0, dispatch=5,
    ),
    "sharded-mcmc": Soaked(
        settings=("num_warmup=100", "num_leapfrog_steps=8", "draws_per_dispatch=10", "max_draws_mib=4"),
        steps_param="num_draws", num_warmup=100, dispatch=10,
    ),
    "independent-chains": Soaked(
        settings=(
            "model=gaussian", "num_chains=8", "num_warmup=100", "num_leapfrog_steps=2000", "draws_per_dispatch=10",
        ),
        steps_param="num_draws", num_warmup=100, dispatch=10,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throw:
    """One fault of a soak.

    Attributes:
        kind: as `--inject` names it.
        place: number of the rank, of the host, or (flip-bit) of the device.
        step: it is thrown when the job has come so far.
        attempt: during which attempt, if each fault before it has ended one.
    """

    kind: str
    place: int
    step: int
    attempt: int

    @property
    def injection(self) -> str | None:
        """As `--inject` takes it; None: it is thrown from outside."""
        if self.kind not in BY_INJECTION:
            return None
        where = "device" if self.kind == "flip-bit" else "rank"
        return f"{self.kind} {where}={self.place} step={self.step} attempt={self.attempt}"


def plan(*, steps: int, steps_per_s: float, seed: int, num_hosts: int = 2, devices_per_host: int = 2) -> list[Throw]:
    """Faults for a job of so many steps: all kinds in a shuffled order, then all again in another.

    They are placed by steps, not by the clock, so that one that is injected (and must be asked for before the job
    starts) and one that is thrown from outside come at the right moment alike; the gaps are drawn in seconds.

    Args:
        steps: of the job.
        steps_per_s: of a calm run.
        seed: the same faults for the same seed.
        num_hosts, devices_per_host: what there is to hit.
    """
    draw = random.Random(seed)
    throws: list[Throw] = []
    deck: list[str] = []
    at_s = draw.uniform(*GAP_S)
    while at_s < steps / steps_per_s - TAIL_S:
        if not deck:
            deck = [*FROM_OUTSIDE, *BY_INJECTION]
            draw.shuffle(deck)
        kind = deck.pop()
        places = num_hosts * devices_per_host if kind == "flip-bit" else num_hosts
        place, step = draw.randrange(places), round(at_s * steps_per_s)
        throws.append(Throw(kind=kind, place=place, step=step, attempt=len(throws) + 1))
        at_s += draw.uniform(*GAP_S)
    return throws
