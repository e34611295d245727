"""When a check is due: by steps, and by cost within its budget."""

import itertools

import pytest

from tests.ranks import run_ranks
from workloads.exchange import Exchange
from workloads.integrity.cadence import BUDGET, FIRST_CHECK_S, Cadence, Costs, decide


@pytest.mark.parametrize("step_s", [0.001, 0.05, 3.0])
@pytest.mark.parametrize("check_s", [0.0005, 0.02, 1.5])
def test_checks_stay_within_their_budget_and_use_it(step_s: float, check_s: float) -> None:
    run_s = checks_s = last_s = 0.0
    next_s, ask_at, due_steps, num_asked = FIRST_CHECK_S, 1, [], 0
    num_steps = int(2000 * max(check_s, FIRST_CHECK_S) / step_s)
    for step in range(1, num_steps + 1):
        run_s += step_s
        if step < ask_at:
            continue
        num_asked += 1
        costs = Costs(run_s=run_s, since_s=run_s - last_s, checks_s=checks_s, next_s=next_s)
        due, ask_at = decide(costs, step=step, first_step=0)
        if due:
            due_steps.append(step)
            run_s, checks_s, next_s = run_s + check_s, checks_s + check_s, check_s
            last_s = run_s
            assert checks_s <= BUDGET * run_s or len(due_steps) == 1  # the first costs what it costs
    period = max(1, check_s / BUDGET / step_s)
    assert len(due_steps) >= 0.8 * (num_steps - due_steps[0]) / (period + 1)
    assert all(after - before >= period - 1 for before, after in itertools.pairwise(due_steps[1:]))
    assert num_asked <= 3 * len(due_steps) + 30


def test_asking_again_is_never_further_ahead_than_the_steps_made() -> None:
    costs = Costs(run_s=1.0, since_s=1.0, checks_s=0.0, next_s=1.0)
    assert decide(costs, step=10, first_step=0) == (False, 20)
    assert decide(costs, step=110, first_step=100) == (False, 120)
    assert decide(Costs(run_s=90.0, since_s=90.0, checks_s=0.0, next_s=1.0), step=900, first_step=0) == (False, 1000)
    assert decide(Costs(run_s=0.0, since_s=0.0, checks_s=0.0, next_s=1.0), step=5, first_step=5) == (False, 6)


def test_every_so_many_steps_and_at_the_end() -> None:
    cadence = Cadence(Exchange(0, 1), 5)
    assert [step for step in range(1, 13) if cadence.due(step, 12)] == [5, 10, 12]
    assert [cadence.next_step(step) for step in (0, 4, 5)] == [5, 5, 10]


@pytest.mark.parametrize("every", [0, 5])
def test_a_step_that_is_replayed_is_checked_whatever_else_is_due(every: int) -> None:
    cadence = Cadence(Exchange(0, 1), every, also_at=7)
    assert [step for step in range(1, 13) if cadence.due(step, 12)] == ([7, 12] if every == 0 else [5, 7, 10, 12])
    assert [cadence.next_step(step) for step in (5, 6)] == [7, 7] and cadence.next_step(7) > 7


def test_a_short_run_is_checked_at_its_end_alone() -> None:
    cadence = Cadence(Exchange(0, 1), 0)
    assert [step for step in range(1, 101) if cadence.due(step, 100)] == [100]


def test_two_ranks_with_different_clocks_decide_alike() -> None:
    first, second = run_ranks("tests.workloads.integrity_programs:cadence", num_hosts=2, devices_per_host=2)
    assert first == second
    assert len(first["due"]) == 2 and first["asked"] < 60
