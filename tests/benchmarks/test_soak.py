"""Which faults a soak throws, and how it reads the record of the job that it throws them at."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from fault_cases import CASES
from soak_plan import BY_INJECTION, FROM_OUTSIDE, GAP_S, TAIL_S, WORKLOADS, Throw, plan
from soak_report import computed_over, not_skipped, wrong
from soak_watch import JobWatch, Tail

from launcher.faults import check_faults, parse_fault
from workloads.params import parse
from workloads.registry import find

RATE = 20.0
LONG = plan(steps=round(1200 * RATE), steps_per_s=RATE, seed=7)


@pytest.mark.parametrize("seed", range(5))
def test_faults_come_at_the_promised_gaps_and_leave_a_tail(seed: int) -> None:
    steps = round(180 * RATE)
    throws = plan(steps=steps, steps_per_s=RATE, seed=seed)
    gaps_s = [(after - before) / RATE for before, after in itertools.pairwise([0, *(throw.step for throw in throws)])]
    assert 2 <= len(throws) <= 5
    assert all(GAP_S[0] - 0.1 <= gap_s <= GAP_S[1] + 0.1 for gap_s in gaps_s)
    assert throws[-1].step <= steps - TAIL_S * RATE + 1
    assert throws == plan(steps=steps, steps_per_s=RATE, seed=seed)


def test_every_kind_comes_before_any_comes_again() -> None:
    kinds = [throw.kind for throw in LONG]
    size = len(FROM_OUTSIDE) + len(BY_INJECTION)
    assert len(LONG) >= 2 * size
    assert set(kinds[:size]) == set(kinds[size : 2 * size]) == {*FROM_OUTSIDE, *BY_INJECTION}
    assert set(kinds) <= {case.kind for case in CASES}  # which say what must come of each


def test_injected_faults_are_those_that_submit_knows() -> None:
    injected = [throw for throw in LONG if throw.injection]
    faults = [parse_fault(str(throw.injection)) for throw in injected]
    check_faults(faults, 2, 2)
    assert [(fault.step, fault.attempt) for fault in faults] == [(throw.step, throw.attempt) for throw in injected]
    assert {throw.kind for throw in injected} == set(BY_INJECTION)


@pytest.mark.parametrize("name", WORKLOADS)
def test_settings_fit_the_workload(name: str) -> None:
    kind = WORKLOADS[name]
    steps = kind.whole(1234.5)
    config = parse(find(name).config_class(), dict(setting.split("=") for setting in kind.with_steps(steps)))
    assert getattr(config, "num_transitions", getattr(config, "steps", None)) == steps
    assert steps % kind.dispatch == 0
    assert kind.whole(0.0) == kind.dispatch


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"a": 1}\n{"b"')
    assert tail.read() == [{"a": 1}]
    path.write_text('{"a": 1}\n{"b": 2}\n')
    assert tail.read() == [{"b": 2}]
    assert tail.read() == []


def test_a_job_is_followed_to_its_end(tmp_path: Path) -> None:
    watch = JobWatch(tmp_path)
    assert not watch.until(lambda: watch.step > 0, 0.0)
    rows = [f'{{"at": {at}, "rank": {rank}, "step": {10 * at}}}\n' for at in range(1, 5) for rank in (0, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(rows))
    (tmp_path / "events.jsonl").write_text('{"type": "injected"}\n{"type": "state", "state": "SUCCEEDED"}\n')
    watch.look()
    assert (watch.step, watch.steps_per_s()) == (40, 10.0)
    assert watch.ended is not None
    assert watch.first("injected", 0) is not None and watch.first("injected", 1) is None


def test_a_report_must_name_the_fault_and_its_place_in_time() -> None:
    throw = Throw(kind="kill", place=1, step=5, attempt=1)
    message = "rank 1 on host faults-1 was killed by signal 9 (SIGKILL)"
    assert wrong(throw, message, [], 0.5) == ""
    assert "does not tell of it" in wrong(throw, "rank 0 raised XlaRuntimeError", [], 0.5)
    assert "does not tell of it" in wrong(dataclasses.replace(throw, place=0), message, [], 0.5)
    assert "3.0 s" in wrong(throw, message, [], 3.0)


@pytest.mark.parametrize(
    ("damaged", "events", "good"),
    [
        (None, [], True),
        (40, [{"type": "checkpoint-skipped", "step": 40}, {"type": "resumed", "step": 35}], True),
        (40, [{"type": "resumed", "step": 40}], False),
        (40, [{"type": "checkpoint", "step": 45}, {"type": "resumed", "step": 45}], True),
        (40, [{"type": "resumed", "step": 45}], True),  # it was committed, and the rank killed before it could tell
        (40, [{"type": "checkpoint", "step": 45}, {"type": "resumed", "step": 40}], False),
        (40, [{"type": "resumed", "step": 35}], False),
        (40, [{"type": "checkpoint", "step": 45}], False),
        (40, [{"type": "resumed", "step": 40}, {"type": "checkpoint", "step": 45}], False),
    ],
)
def test_a_damaged_checkpoint_must_be_skipped_unless_a_newer_one_came(
    damaged: int | None, events: list[dict[str, Any]], good: bool
) -> None:
    assert (not_skipped(damaged, events) == "") is good


def test_a_flipped_bit_is_gone_only_when_a_step_after_it_is_committed() -> None:
    flipped = {"type": "flipped", "step": 40}
    earlier, later = {"type": "checkpoint", "step": 35}, {"type": "checkpoint", "step": 45}
    assert computed_over([]) is computed_over([flipped]) is computed_over([later, flipped, earlier]) is None
    assert computed_over([flipped, earlier, later]) == flipped
