"""When is a replica check due? Every so many steps, or by what checks cost; the same answer on every rank."""

import dataclasses
import math
import time

from workloads.exchange import Exchange

BUDGET = 0.01  # of the run time that checks may take
FIRST_CHECK_S = 1.0  # taken for granted before one was measured; a first check compiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What rank 0 has measured.

    Attributes:
        run_s: seconds since the steps began.
        since_s: seconds since the last check, or since the steps began.
        checks_s: seconds in checks, and in deciding.
        next_s: what the next one will take: as much as the last.
    """

    run_s: float
    since_s: float
    checks_s: float
    next_s: float


def decide(costs: Costs, *, step: int, first_step: int) -> tuple[bool, int]:
    """Whether a check fits into the budget now.

    Args:
        costs: so far.
        step: steps done.
        first_step: steps that were done when `run_s` began.

    Returns:
        Whether it is due, and the step at which to decide again: when the run should be long enough for the next, but
        not further ahead than the steps made so far, as steps may get slower.
    """
    # Neither more than the budget in all, nor a burst of checks after a time with fewer.
    missing_s = max((costs.checks_s + costs.next_s) / BUDGET - costs.run_s, costs.next_s / BUDGET - costs.since_s)
    is_due = missing_s <= 0
    if is_due:
        missing_s = costs.next_s / BUDGET
    done = step - first_step
    steps_per_s = done / max(costs.run_s - costs.checks_s, 1e-9)
    return is_due, step + max(1, min(math.ceil(missing_s * steps_per_s), done))


class Cadence:
    """Decides on rank 0, as seldom as can be, and tells the others: all check, or none does.

    Args:
        exchange: messages between the ranks; used only to decide by cost.
        every: steps between checks; 0: as often as `BUDGET` allows.
        also_at: a step at which one is due in any case; 0: none.
    """

    def __init__(self, exchange: Exchange, every: int, *, also_at: int = 0):
        self._exchange = exchange
        self._every = every
        self._also_at = also_at
        self._started_s: float | None = None
        self._last_s = 0.0
        self._first_step = 0
        self._ask_at = 0
        self._checks_s = 0.0
        self._next_s = FIRST_CHECK_S
        self._due_since_s: float | None = None

    def next_step(self, step: int) -> int:
        """The first step after `step` at which a check may be due; equal on all ranks."""
        following = step - step % self._every + self._every if self._every else max(step + 1, self._ask_at)
        return min(following, self._also_at) if step < self._also_at else following

    def due(self, step: int, total: int) -> bool:
        """Whether to check after `step` of `total`; every rank must ask at the same steps, and then check.

        Raises:
            TimeoutError: naming the ranks that did not ask.
        """
        now = time.monotonic()
        if step >= total or step == self._also_at:
            return True
        if self._every:
            return step % self._every == 0
        if self._started_s is None:
            self._started_s, self._last_s, self._first_step, self._ask_at = now, now, step, step + 1
        if step < self._ask_at:
            return False
        mine = Costs(
            run_s=now - self._started_s, since_s=now - self._last_s, checks_s=self._checks_s, next_s=self._next_s
        )
        costs = Costs(**self._exchange.all_gather("check due", dataclasses.asdict(mine))[0])
        self._checks_s += time.monotonic() - now
        is_due, self._ask_at = decide(costs, step=step, first_step=self._first_step)
        self._due_since_s = now if is_due else None
        return is_due

    def checked(self, began_s: float) -> None:
        """Books a check that ends now; what was done for it since it was found due is part of its cost.

        Args:
            began_s: when it began, by the monotonic clock.
        """
        self._last_s = time.monotonic()
        seconds = self._last_s - (self._due_since_s or began_s)
        self._due_since_s = None
        self._checks_s += seconds
        self._next_s = seconds
