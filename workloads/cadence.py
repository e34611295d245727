"""When is a replica check or a checkpoint due? Every so many steps, or by what they cost; equal on every rank."""

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from workloads.exchange import Exchange
from workloads.save_requests import SaveRequests


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What may be spent.

    Attributes:
        share: of the run time.
        first_s: seconds that the first is taken to need, before one was measured.
        at_least_s: seconds between two, however little they cost.
    """

    share: float
    first_s: float
    at_least_s: float = 0.0


CHECKS = Budget(share=0.01, first_s=1.0)  # a first check compiles
SAVES = Budget(share=0.05, first_s=3.0, at_least_s=60.0)  # a minute of work is what a restart may cost anyway


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What rank 0 has measured.

    Attributes:
        run_s: seconds since the steps began.
        since_s: seconds since the last one ended, or since the steps began; 0 while one is under way.
        spent_s: seconds in all of them, and in deciding.
        next_s: what the next one will take: as much as the last.
    """

    run_s: float
    since_s: float
    spent_s: float
    next_s: float


def decide(costs: Costs, budget: Budget, *, step: int, first_step: int) -> tuple[bool, int]:
    """Whether one fits into the budget now.

    Args:
        costs: so far.
        budget: for them.
        step: steps done.
        first_step: steps that were done when `run_s` began.

    Returns:
        Whether it is due, and the step at which to decide again: when the run should be long enough for the next, but
        not further ahead than the steps made so far, as steps may get slower.
    """
    period_s = max(costs.next_s / budget.share, budget.at_least_s)
    # Neither more than the budget in all, nor a burst after a time with fewer.
    missing_s = max((costs.spent_s + costs.next_s) / budget.share - costs.run_s, period_s - costs.since_s)
    is_due = missing_s <= 0
    if is_due:
        missing_s = period_s
    done = step - first_step
    steps_per_s = done / max(costs.run_s - costs.spent_s, 1e-9)
    return is_due, step + max(1, min(math.ceil(missing_s * steps_per_s), done))


class Cadence:
    """Decides on rank 0, as seldom as can be, and tells the others: all do it, or none does.

    Args:
        exchange: messages between the ranks; used only to decide by cost.
        every: steps from one to the next; 0: only at the end; None: as often as the budget allows.
        budget: for None.
        also_at: a step at which it is due in any case; 0: none.
        asking: entered while ranks wait for rank 0's word: who waits must be seen to be ahead of whom it waits for.
        requests: by which it can be asked for from outside, besides.
    """

    def __init__(
        self,
        exchange: Exchange,
        every: int | None,
        budget: Budget,
        *,
        also_at: int = 0,
        asking: Callable[[], AbstractContextManager[None]] = nullcontext,
        requests: SaveRequests | None = None,
    ):
        self._exchange = exchange
        self._asking = asking
        self._requests = requests
        self._every = every
        self._also_at = also_at
        self._budget = budget
        self._started_s: float | None = None
        self._last_s = 0.0
        self._first_step = 0
        self._ask_at = 0
        self._spent_s = 0.0
        self._next_s = budget.first_s
        self._due_since_s: float | None = None

    def next_step(self, step: int, total: int, *, chunk: int = 1) -> int:
        """The first step after `step` at which one may be due; equal on all ranks.

        Args:
            step: steps done.
            total: steps in all, which is the last answer.
            chunk: steps of one dispatch: by cost it is asked for only where one ends.
        """
        following = min(total, self._next_step(step, total, chunk))
        return min(following, self._also_at) if step < self._also_at else following

    def _next_step(self, step: int, total: int, chunk: int) -> int:
        if self._every is None:
            return chunk * math.ceil(max(step + 1, self._ask_at) / chunk)
        return step - step % self._every + self._every if self._every else total

    def requested(self, step: int) -> bool:
        """Whether it is due after `step` because it was asked for; `due` says so too.

        For a workload that looks ahead by `next_step`: every rank must ask at the same steps on the way there.

        Raises:
            TimeoutError: naming the ranks that were not given the request.
        """
        return self._requests is not None and self._requests.due(step)

    def due(self, step: int, total: int) -> bool:
        """Whether to do it after `step` of `total`; every rank must ask at the same steps, and then do it.

        Raises:
            TimeoutError: naming the ranks that did not ask.
        """
        now = time.monotonic()
        if step >= total or step == self._also_at:
            return True
        if self.requested(step):
            self._due_since_s = now
            return True
        if self._every is not None:
            return self._every > 0 and step % self._every == 0
        if self._started_s is None:
            self._started_s, self._last_s, self._first_step, self._ask_at = now, now, step, step + 1
        if step < self._ask_at:
            return False
        mine = self._costs(now, run_s=now - self._started_s)
        with self._asking():
            costs = Costs(**self._exchange.all_gather("due", dataclasses.asdict(mine))[0])
        self._spent_s += time.monotonic() - now
        is_due, self._ask_at = decide(costs, self._budget, step=step, first_step=self._first_step)
        if is_due:
            self._due_since_s = now
        return is_due

    def done(self, began_s: float | None = None) -> None:
        """Books what ends now, from any thread; all that was done for it since it was found due is its cost.

        Args:
            began_s: when it began, by the monotonic clock, where it was not found due by cost; None: it counts nothing.
        """
        now = time.monotonic()
        began_s = self._due_since_s or began_s or now
        self._spent_s += now - began_s
        self._next_s = now - began_s
        self._last_s = now
        self._due_since_s = None

    def _costs(self, now: float, *, run_s: float) -> Costs:
        """So far; of what is under way (a checkpoint is written in the background) as much as it has taken by now."""
        due_since_s = self._due_since_s  # once: the thread that writes may end it meanwhile
        under_way_s = 0.0 if due_since_s is None else now - due_since_s
        return Costs(
            run_s=run_s,
            since_s=now - self._last_s if due_since_s is None else 0.0,
            spent_s=self._spent_s + under_way_s,
            next_s=max(self._next_s, under_way_s),
        )
