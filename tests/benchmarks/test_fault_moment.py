"""The step at which a fault happened must be the one that was asked for, and the one that is told."""

import dataclasses

import pytest

from tests.benchmarks.fault_story import (
    FLIP,
    FLIPPED,
    IN_ORDERS,
    KILLED,
    LOST,
    OTHER_PROGRAM,
    OUT_OF_MEMORY,
    RAISED,
    SKIPPED,
    SLEPT,
    failed,
    injected,
    injection,
    look,
)  # fmt: skip


@pytest.mark.parametrize("step", [2, 5, 8, 40])
def test_a_fault_at_another_step_than_the_one_asked_for_fails(step: int) -> None:
    events = [injected(injection("kill"), step), failed(KILLED)]
    assert (
        f"it happened at step {step}, and step 6 was asked for"
        in look(injection("kill"), KILLED, events=events).problems
    )


def test_a_fault_happens_at_the_first_report_from_its_step_on() -> None:
    fault = dataclasses.replace(injection("kill"), step=5)
    assert look(fault, KILLED, events=[injected(fault, 6), failed(KILLED)]).problems == ()


def test_chains_have_a_state_to_flip_only_where_they_meet() -> None:
    fault = dataclasses.replace(injection("flip-bit", 3), workload="independent-chains")
    told = FLIPPED.replace("at step 6", "at step 8").replace("step 6 of 40", "step 8 of 40")
    at = [injected(fault, 8), FLIP, failed(told)]
    assert look(fault, told, events=at).problems == ()
    assert look(dataclasses.replace(fault, workload="transformer"), told, events=at).problems
    late = [injected(fault, 16), FLIP, failed(told)]
    assert "it happened at step 16, and step 6 was asked for" in look(fault, told, events=late).problems


def test_another_environment_is_there_from_the_start_whatever_the_step() -> None:
    fault = injection("other-env")
    problems = look(fault, "", events=[injected(fault, 0)]).problems
    assert problems and not [problem for problem in problems if problem.startswith("it happened at")]


@pytest.mark.parametrize(
    ("kind", "place", "message"),
    [
        ("kill", 1, KILLED),
        ("oom", 1, OUT_OF_MEMORY),
        ("raise", 1, RAISED),
        ("sleep", 1, SLEPT),
        ("kill-agent", 1, LOST),
    ],
)
def test_the_step_that_is_told_is_the_one_of_the_fault_or_one_report_before(
    kind: str, place: int, message: str
) -> None:
    for step, good in ((4, True), (2, False), (8, False), (39, False)):
        told = message.replace("step 6 of 40", f"step {step} of 40")
        assert (look(injection(kind, place), told).problems == ()) is good
    told = message.replace(", step 6 of 40", "")
    assert ("the report tells no step" in look(injection(kind, place), told).problems) is (kind != "kill-agent")


def test_a_rank_that_loses_its_host_may_run_on() -> None:
    fault = injection("kill-agent")
    for reached, good in ((8, True), (6, False)):
        reports = [{"at": at, "rank": 1, "step": step} for at, step in ((1.1, reached), (2.0, 2), (3.0, 10), (4.0, 40))]
        told = LOST.replace("step 6 of 40", "step 8 of 40")
        assert (look(fault, told, reports=reports).problems == ()) is good


def test_of_a_rank_whose_word_was_lost_any_step_since_its_last_report_may_be_told() -> None:
    fault = dataclasses.replace(injection("kill-agent"), step=10)
    for step, good in ((2, False), (4, True), (6, True), (10, True), (12, False)):
        told = LOST.replace("step 6 of 40", f"step {step} of 40")
        reports = [{"at": at, "rank": 1, "step": reached} for at, reached in ((0.9, 6), (2.0, 2), (3.0, 8), (4.0, 40))]
        assert (look(fault, told, events=[failed(told)], reports=reports).problems == ()) is good


@pytest.mark.parametrize(("step", "good"), [(2, False), (6, False), (8, True), (10, False), (38, False)])
def test_a_launch_is_missing_at_the_report_after_the_fault(step: int, good: bool) -> None:
    told = SKIPPED.replace("report of step 8", f"report of step {step}")
    assert (look(injection("skip-collective"), told).problems == ()) is good
    told = IN_ORDERS.replace("report of step 8", f"report of step {step}")
    assert (look(injection("swap-programs", 0), told).problems == ()) is good


def test_a_validation_that_was_left_out_is_missing_at_the_next_one() -> None:
    for step, due in ((20, 40), (22, 24)):
        fault = dataclasses.replace(injection("skip-collective"), step=step)
        for report, good in ((due, True), (38, False)):
            told = SKIPPED.replace("report of step 8", f"report of step {report}")
            assert (look(fault, told, events=[injected(fault, step), failed(told)]).problems == ()) is good


@pytest.mark.parametrize(("step", "good"), [(4, False), (6, True), (8, True), (10, False)])
def test_copies_differ_from_the_flip_to_the_next_check(step: int, good: bool) -> None:
    told = FLIPPED.replace("replicas differ at step 6", f"replicas differ at step {step}")
    assert (look(injection("flip-bit", 3), told, (FLIP,)).problems == ()) is good


def test_a_program_differs_where_it_is_launched_next() -> None:
    told = OTHER_PROGRAM.replace("step 6 of 40", "step 12 of 40")
    assert look(injection("other-program"), told).problems == (
        "the report tells 'step 12 of 40', and it can be step 6 to 8 alone",
    )
