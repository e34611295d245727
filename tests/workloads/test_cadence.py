"""When a check or a checkpoint is due: by steps, or by cost within its budget; and no bit depends on it."""

import itertools
import json
import time
from pathlib import Path

import pytest

from tests.ranks import run_ranks
from tests.workloads.test_resume import SHORT, all_but_one_long
from workloads.cadence import CHECKS, SAVES, Budget, Cadence, Costs, decide
from workloads.context import Context
from workloads.exchange import Exchange
from workloads.save_requests import SaveRequests

PROGRAMS = "tests.workloads.cadence_programs"


@pytest.mark.parametrize("budget", [CHECKS, SAVES])
@pytest.mark.parametrize("step_s", [0.001, 0.05, 3.0])
@pytest.mark.parametrize("cost_s", [0.0005, 0.02, 1.5, 30.0])
def test_spending_stays_within_the_budget_and_uses_it(budget: Budget, step_s: float, cost_s: float) -> None:
    run_s = spent_s = last_s = 0.0
    next_s, step, ask_at, num_asked = budget.first_s, 0, 1, 0
    due_steps: list[int] = []
    while len(due_steps) < 8:
        run_s += (ask_at - step) * step_s
        step = ask_at
        num_asked += 1
        costs = Costs(run_s=run_s, since_s=run_s - last_s, spent_s=spent_s, next_s=next_s)
        due, ask_at = decide(costs, budget, step=step, first_step=0)
        if due:
            due_steps.append(step)
            run_s, spent_s, next_s = run_s + cost_s, spent_s + cost_s, cost_s
            last_s = run_s
            assert spent_s <= budget.share * run_s or len(due_steps) == 1  # the first costs what it costs
    period = max(1.0, budget.at_least_s / step_s, cost_s / budget.share / step_s)
    gaps = [after - before for before, after in itertools.pairwise(due_steps[2:])]
    assert all(period - 1 <= gap <= 1.01 * period + 1 for gap in gaps)
    assert num_asked <= 3 * len(due_steps) + 30


def test_a_checkpoint_a_minute_where_it_is_cheap_and_fewer_where_it_is_not() -> None:
    asked = {"budget": SAVES, "step": 1000, "first_step": 0}
    cheap = Costs(run_s=600.0, since_s=59.9, spent_s=5.0, next_s=0.5)
    assert not decide(cheap, **asked)[0]
    assert decide(Costs(**{**vars(cheap), "since_s": 60.0}), **asked)[0]
    dear = Costs(run_s=600.0, since_s=199.0, spent_s=10.0, next_s=10.0)
    assert not decide(dear, **asked)[0]
    assert decide(Costs(**{**vars(dear), "since_s": 200.0}), **asked)[0]
    overspent = Costs(run_s=600.0, since_s=200.0, spent_s=25.0, next_s=10.0)
    assert not decide(overspent, **asked)[0]


def test_asking_again_is_never_further_ahead_than_the_steps_made() -> None:
    costs = Costs(run_s=1.0, since_s=1.0, spent_s=0.0, next_s=1.0)
    assert decide(costs, CHECKS, step=10, first_step=0) == (False, 20)
    assert decide(costs, CHECKS, step=110, first_step=100) == (False, 120)
    late = Costs(run_s=90.0, since_s=90.0, spent_s=0.0, next_s=1.0)
    assert decide(late, CHECKS, step=900, first_step=0) == (False, 1000)
    assert decide(Costs(run_s=0.0, since_s=0.0, spent_s=0.0, next_s=1.0), CHECKS, step=5, first_step=5) == (False, 6)


def test_every_so_many_steps_and_at_the_end() -> None:
    cadence = Cadence(Exchange(0, 1), 5, SAVES)
    assert [step for step in range(1, 13) if cadence.due(step, 12)] == [5, 10, 12]
    assert [cadence.next_step(step, 12, chunk=4) for step in (0, 4, 5, 11)] == [5, 5, 10, 12]


def test_only_at_the_end() -> None:
    cadence = Cadence(Exchange(0, 1), 0, SAVES)
    assert [step for step in range(1, 13) if cadence.due(step, 12)] == [12]
    assert cadence.next_step(3, 12) == 12


@pytest.mark.parametrize("every", [None, 5])
def test_a_step_that_is_replayed_is_checked_whatever_else_is_due(every: int | None) -> None:
    cadence = Cadence(Exchange(0, 1), every, CHECKS, also_at=7)
    assert [step for step in range(1, 13) if cadence.due(step, 12)] == ([7, 12] if every is None else [5, 7, 10, 12])
    assert [cadence.next_step(step, 12) for step in (5, 6)] == [7, 7] and cadence.next_step(7, 12) > 7


@pytest.mark.parametrize("budget", [CHECKS, SAVES])
def test_in_a_short_run_it_is_due_at_its_end_alone(budget: Budget) -> None:
    cadence = Cadence(Exchange(0, 1), None, budget)
    assert [step for step in range(1, 101) if cadence.due(step, 100)] == [100]


def test_by_cost_it_is_asked_for_only_where_a_dispatch_ends() -> None:
    cadence = Cadence(Exchange(0, 1), None, SAVES)
    assert [cadence.next_step(step, 22, chunk=5) for step in (0, 4, 5, 7, 20)] == [5, 5, 10, 10, 22]


def test_nothing_is_due_while_one_is_written_in_the_background() -> None:
    cadence = Cadence(Exchange(0, 1), None, Budget(share=1000.0, first_s=0.0))
    assert not cadence.due(1, 100)  # where its clock starts
    assert cadence.due(2, 100)
    time.sleep(0.1)
    assert not any(cadence.due(step, 100) for step in range(3, 20))
    cadence.done()
    time.sleep(0.01)
    assert cadence.due(40, 100)


@pytest.mark.slow
def test_two_ranks_with_different_clocks_decide_alike() -> None:
    first, second = run_ranks(f"{PROGRAMS}:due", num_hosts=2, devices_per_host=2, share=0.05)
    assert first == second
    assert len(first["due"]) == 3 and first["asked"] < 60


@pytest.mark.slow
@pytest.mark.parametrize("workload", all_but_one_long("transformer"))
def test_checkpoints_by_cost_change_no_bit(workload: str, tmp_path: Path) -> None:
    _, settings = SHORT[workload]
    per_dispatch = "steps_per_dispatch" if workload == "transformer" else "draws_per_dispatch"
    ranks = run_ranks(
        f"{PROGRAMS}:saved_at_every_chance", num_hosts=2, devices_per_host=2, seed=2, folder=tmp_path,
        workload=workload, settings=settings | {per_dispatch: "2"},
    )  # fmt: skip
    assert len({outcome["digest"] for outcomes in ranks for outcome in outcomes}) == 1
    events = json.loads((tmp_path / "value-0.json").read_text())["events"]
    assert len([event for event in events if event["type"] == "checkpoint" and event["step"] < 22]) >= 2


def test_who_waits_to_agree_is_seen_to_be_ahead(tmp_path: Path) -> None:
    """Of two ranks at one place nobody could be named as the one that the other waits for."""
    told: list[str] = []
    context = Context.local(tmp_path, emit=lambda event: told.append(event.get("phase", event["type"])))
    for step in range(1, 9):
        context.check_cadence.due(step, 100)
        context.save_due(step, 100)
    agreed = len(told) // 2
    assert 2 <= agreed < 16 and told == ["agree", "run"] * agreed  # as seldom as can be


@pytest.mark.parametrize("every", [None, 0, 7])
def test_a_save_that_is_asked_for_is_due_once_at_the_next_step_whatever_the_cadence(every: int | None) -> None:
    requests = SaveRequests(Exchange(0, 1))
    cadence = Cadence(Exchange(0, 1), every, SAVES, requests=requests)
    assert not any(cadence.due(step, 100) for step in (1, 2, 3))
    requests.ask(1)
    requests.ask(1)  # as one that was told twice, because the first answer was lost
    requests._thread.submit(int).result(60)  # its one thread has taken what was asked for before this
    assert cadence.requested(4) and cadence.due(4, 100)
    cadence.done()
    assert not cadence.due(5, 100)
    requests.ask(2)
    requests._thread.submit(int).result(60)
    assert cadence.due(6, 100)


def test_two_ranks_save_at_one_step_when_asked_at_different_ones() -> None:
    first, second = run_ranks(f"{PROGRAMS}:due_when_asked", num_hosts=2, devices_per_host=1, every=0, num_requests=5)
    assert first == second
    assert 1 <= len(first["due"]) <= 5, "requests that overlap may be met by one save"


@pytest.mark.slow
@pytest.mark.parametrize("workload", all_but_one_long("transformer"))
def test_a_checkpoint_that_is_asked_for_changes_no_bit(workload: str, tmp_path: Path) -> None:
    _, settings = SHORT[workload]
    per_dispatch = "steps_per_dispatch" if workload == "transformer" else "draws_per_dispatch"
    ranks = run_ranks(
        f"{PROGRAMS}:saved_when_asked", num_hosts=2, devices_per_host=2, seed=2, folder=tmp_path,
        workload=workload, settings=settings | {per_dispatch: "2"},
    )  # fmt: skip
    assert len({outcome["digest"] for outcomes in ranks for outcome in outcomes}) == 1
    events = json.loads((tmp_path / "value-0.json").read_text())["events"]
    early = [event["step"] for event in events if event["type"] == "checkpoint" and event["step"] < 22]
    assert len(early) == 1 and 4 <= early[0] <= 20
