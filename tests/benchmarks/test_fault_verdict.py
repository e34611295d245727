"""What the fault runs accept: the fault named at the right place and shown, and nothing that only looks like it."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from fault_cases import CASES, EVAL_EVERY, REPORT_EVERY, Case, plan, sample
from fault_evidence import Evidence, Said, seconds_to_steps

from launcher.faults import check_faults, parse_fault
from tests.benchmarks.fault_story import (
    BY_NAME,
    CALM,
    FLIP,
    FLIPPED,
    FROZEN,
    HINTS,
    KILLED,
    LOST,
    OTHER_PROGRAM,
    RAISED,
    RIGHT,
    SKIPPED,
    SLEPT,
    SWAPPED,
    committed,
    failed,
    injected,
    injection,
    look,
    restart,
)  # fmt: skip
from workloads.params import parse
from workloads.registry import find


@pytest.mark.parametrize(("kind", "place", "message", "events"), RIGHT)
def test_the_right_sentence_passes(kind: str, place: int, message: str, events: Sequence[Mapping[str, Any]]) -> None:
    assert look(injection(kind, place), message, events).problems == ()


@pytest.mark.parametrize("kind", [kind for kind, place, *_ in RIGHT if place])
def test_the_other_rank_as_the_culprit_fails(kind: str) -> None:
    _, place, message, events = next(case for case in RIGHT if case[0] == kind)
    assert look(injection(kind, {1: 0, 3: 2}[place]), message, events).problems


@pytest.mark.parametrize(("kind", "place", "message", "events"), RIGHT)
def test_words_in_hints_alone_fail(kind: str, place: int, message: str, events: Sequence[Mapping[str, Any]]) -> None:
    of_another = f"rank 0 on host faults-0 raised XlaRuntimeError: a peer has gone, as when {message}"
    problems = look(injection(kind, place), of_another, events).problems
    assert any("does not tell of it" in problem for problem in problems)


def test_two_ranks_are_no_culprit() -> None:
    message = "ranks 0 on faults-0, 1 on faults-1 each was killed by signal 9 (SIGKILL)"
    assert "does not tell of it" in look(injection("kill"), message).problems[0]


@pytest.mark.parametrize("place", [0, 1])
def test_a_skipped_launch_is_told_by_numbers_or_by_the_next_launches_of_both(place: int) -> None:
    text = "ranks have launched different programs: "
    assert look(injection("skip-collective", place), SWAPPED).problems == ()
    assert look(injection("skip-collective", place), SWAPPED.replace("validate", "train")).problems
    assert look(injection("skip-collective", place), f"{text}launches until the end").problems
    assert bool(look(injection("skip-collective", place), SKIPPED).problems) is (place == 0)


def test_a_report_that_was_not_shown_fails() -> None:
    outcome = look(injection("kill"), KILLED, commands=[Said(exit_code=0, printed=HINTS)])
    assert f"the report was not shown: {KILLED!r}" in outcome.problems


def test_a_watchdog_that_blames_another_fails() -> None:
    finding = {"type": "watchdog", "at": 1.1, "finding": "stuck", "fatal": True, "ranks": [0], "text": ""}
    assert any("blames ranks [0]" in problem for problem in look(injection("freeze"), FROZEN, (finding,)).problems)


@pytest.mark.parametrize("finding", ["slow", "stuck", "silent"])
@pytest.mark.parametrize("name", ["kill", "kill-supervisor", "swap-programs"])
def test_a_warning_of_a_healthy_rank_is_a_false_alarm(name: str, finding: str) -> None:
    fault = injection(name, 0 if name == "kill-supervisor" else 1)
    _, _, message, _ = next(case for case in RIGHT if case[0] == name)
    warning = {"type": "watchdog", "at": 0.9, "finding": finding, "fatal": False, "ranks": [0], "text": "needs 2 s"}
    assert any("a false alarm: ranks [0]" in problem for problem in look(fault, message, (warning,)).problems)
    assert look(fault, message, ({**warning, "finding": "together", "ranks": [0, 1]},)).problems == ()
    of_the_one_hit = {**warning, "ranks": [fault.rank]}
    assert (look(fault, message, (of_the_one_hit,)).problems == ()) is (fault.case.where == "rank")


@pytest.mark.parametrize(("name", "message"), [("freeze", FROZEN), ("sleep", SLEPT)])
def test_a_rank_that_stands_is_told_with_what_the_other_waits_in_and_its_stack_is_kept(name: str, message: str) -> None:
    alone = re.sub("; rank 0 waits in 'run', step . of 40", "", message)
    assert look(injection(name), alone).problems == ("no word of what rank 0 waits in",)
    for stacks in ({}, {0: "in gloo"}, {1: "no stack: the agent of host faults-1 did not answer"}):
        assert "no stack of rank 1 was kept" in look(injection(name), message, stacks=stacks).problems[0]
    assert look(injection(name), message, stacks=None).problems == ()  # nobody has looked


def test_a_raised_error_is_on_record_with_its_traceback() -> None:
    events = [injected(injection("raise")), {**failed(RAISED), "details": ""}]
    assert look(injection("raise"), RAISED, events=events).problems == ("no traceback that leads to the error: ''",)


def test_the_changed_program_is_that_of_the_rank_that_was_hit() -> None:
    exchanged = OTHER_PROGRAM.replace("1.0", "x").replace("0.0", "1.0").replace("x", "0.0")
    assert look(injection("other-program", 0), exchanged).problems == ()
    assert "is shown of ranks ['0'], and 1" in look(injection("other-program", 1), exchanged).problems[0]
    was_one = OTHER_PROGRAM.replace("1.0", "3.0").replace("0.0", "1.0")
    assert look(injection("other-program", 1), was_one).problems == ()
    assert look(injection("other-program", 0), was_one).problems


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"job": {"state": "FAILED", "attempt": 2, "message": SWAPPED, "result": None}}, "2 attempts, not 1"),
        ({"job": {"state": "FAILED", "attempt": 1, "message": SWAPPED, "result": {}}}, "a result was accepted"),
        ({"job": {"state": "SUCCEEDED", "attempt": 1, "message": "", "result": {"result_digest": CALM}}}, "not FAILED"),
        ({"commands": [Said(exit_code=0, printed=SWAPPED)]}, "exit codes [0], not [1]"),
        ({"commands": [Said(exit_code=1, printed=f"{SWAPPED}\nresult_digest  ab")]}, "a result was accepted"),
    ],
)
def test_refused_means_once_with_exit_code_1_and_no_result(changed: dict[str, Any], word: str) -> None:
    assert any(word in problem for problem in look(injection("swap-programs"), SWAPPED, **changed).problems)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        (
            {"job": {"state": "SUCCEEDED", "attempt": 2, "message": "", "result": {"result_digest": "b"}}},
            "silent error",
        ),
        ({"events": [failed(KILLED)]}, "did not happen at rank 1"),
        ({"left": ["process 7 (rank)"]}, "left: process 7"),
        (
            {"reports": [{"at": at, "rank": 1, "step": step} for at, step in ((1.0, 6), (2.0, 2), (4.5, 8))]},
            "a new step came after 3.3 s",
        ),
    ],
)
def test_a_run_that_recovered_wrongly_fails(changed: dict[str, Any], word: str) -> None:
    assert any(word in problem for problem in look(injection("kill"), KILLED, **changed).problems)


@pytest.mark.parametrize(
    ("was", "now"),
    [("params/head", "params/tail"), ("first at [2, 3]", "first at [2, 4]"), (", bit 3;", ", bit 4;"),
     ("culprit: faults-1/cpu:131073", "culprit: faults-0/cpu:0")],
)  # fmt: skip
def test_a_flipped_bit_is_named_with_leaf_element_bit_and_device(was: str, now: str) -> None:
    assert look(injection("flip-bit", 3), FLIPPED.replace(was, now), (FLIP,)).problems


@pytest.mark.parametrize("step", [6, 8])
def test_a_flip_that_is_told_without_a_leaf_fails(step: int) -> None:
    nothing = FLIPPED.partition("leaves:")[0].replace("differ at step 6", f"differ at step {step}") + "leaves:"
    assert "0 leaves are shown" in look(injection("flip-bit", 3), nothing, (FLIP,)).problems[0]
    assert look(injection("flip-bit", 3), FLIPPED.replace("in 1 of 18", "in 2 of 18"), (FLIP,)).problems


def test_leaves_that_are_not_shown_name_no_culprit() -> None:
    later = FLIPPED.replace("differ at step 6", "differ at step 8")
    told = f"{later}\n  params/tail: 3 x (faults-0/cpu:0, faults-0/cpu:1, faults-1/cpu:131072) against 1 x "
    right, wrong = (
        f"{told}({name}); culprit: {name} (majority)" for name in ("faults-1/cpu:131073", "faults-1/cpu:131072")
    )
    for count, more in ((2, ""), (10, "\n  and 8 more")):
        counted = f"in {count} of 18 leaves"
        assert (
            look(injection("flip-bit", 3), f"{right}{more}".replace("in 1 of 18 leaves", counted), (FLIP,)).problems
            == ()
        )
        assert look(injection("flip-bit", 3), f"{wrong}{more}".replace("in 1 of 18 leaves", counted), (FLIP,)).problems


def test_with_two_copies_the_culprit_is_unknown_but_the_rest_is_not() -> None:
    text = (
        "rank 0 on host faults-0 raised ReplicaDivergenceError during 'run, step 6 of 40': replicas differ at step 6, "
        "in 1 of 9 leaves:\n  state/log_density: 1 x (faults-0/memory) against 1 x (faults-1/memory); culprit unknown: "
        "no group is more than half\n    first at [4]: 0x1 (1) on faults-0/memory, 0x3 (3) on faults-1/memory, bit 1; "
        "1 of 8 elements differ"
    )
    flip = {**FLIP, "leaf": "log_density", "element": [4], "bit": 1}
    assert look(injection("flip-bit", 2), text, (flip,)).problems == ()
    assert look(injection("flip-bit", 2), text, ({**flip, "bit": 2},)).problems
    both = "2 x (faults-1/cpu:0, faults-1/cpu:1) against 2 x (faults-0/cpu:0, faults-0/cpu:1); culprit unknown"
    assert look(injection("flip-bit", 2), re.sub("1 x .*culprit unknown", both, text), (flip,)).problems
    apart = (
        "2 x (faults-0/cpu:0, faults-0/cpu:1) against 1 x (faults-1/cpu:131072); culprit unknown: more than half "
        "agree, but on 1 of 2 hosts, and copies of one host can share a fault"
    )
    by_hosts = re.sub("1 x .*group is more than half", apart, text)
    assert look(injection("flip-bit", 2), by_hosts, (flip,)).problems == ()
    assert look(injection("flip-bit", 1), by_hosts, (flip,)).problems


def test_a_bit_that_was_computed_over_is_harmless() -> None:
    fault = injection("flip-bit", 3)
    job = {"state": "SUCCEEDED", "attempt": 1, "message": "", "result": {"result_digest": CALM}}
    outcome = look(fault, "", job=job, events=[injected(fault), FLIP])
    assert (outcome.problems, outcome.harmless) == ((), True)


def test_a_slow_rank_must_be_warned_of() -> None:
    fault = injection("slow")
    text = "is slow: it needs 2 s of its own for a step, 9.1 times the median of the others (0.2 s), and they wait"
    warning = {"type": "watchdog", "at": 11.0, "finding": "slow", "fatal": False, "ranks": [1], "text": text}
    job = {"state": "SUCCEEDED", "attempt": 1, "message": "", "result": {"result_digest": CALM}}
    shown = [Said(exit_code=0, printed=f"! rank 1 on host faults-1 {text}")]
    assert look(fault, "", job=job, events=[injected(fault), warning], commands=shown).problems == ()
    assert look(fault, "", job=job, events=[injected(fault)], commands=shown).problems == ("no report",)
    of_another = {**warning, "ranks": [0]}
    assert look(fault, "", job=job, events=[injected(fault), of_another], commands=shown).problems
    assert "it was not shown" in look(fault, "", job=job, events=[injected(fault), warning]).problems[0]


@pytest.mark.parametrize(("skipped", "resumed", "good"), [([16], 8, True), ([], 8, False), ([8], 8, False),
                                                          ([16], 0, False)])  # fmt: skip
def test_a_damaged_checkpoint_must_be_skipped_for_the_newest_good_one(
    skipped: list[int], resumed: int, good: bool
) -> None:
    fault, why = injection("corrupt-checkpoint"), "the data cannot be read (ValueError)"
    more = [committed(8), committed(16), {"type": "damaged", "at": 1.1, "step": 16}]
    said = ["attempt 2 restarts from step 16", f"attempt 2 starts from step {resumed}, not from step 16"]
    after = [
        *({"type": "checkpoint-skipped", "at": 2.0, "step": step, "why": why} for step in skipped),
        *restart(*said, step=resumed),
    ]
    shown = [
        Said(exit_code=0, printed=f"! {KILLED}; {said[0]}\n! checkpoint of step 16 is left out: {why}\n! {said[1]}")
    ]
    assert "no checkpoint was damaged" in look(fault, KILLED, more[:2], after, commands=shown).problems
    assert (look(fault, KILLED, more, after, commands=shown).problems == ()) is good
    assert look(fault, KILLED, more, after).problems  # it was not shown


@pytest.mark.parametrize(("why", "last_good", "good"), [("File too large", 4, True), ("File too large", None, False),
                                                        ("KeyError", 4, False)])  # fmt: skip
def test_a_full_disk_is_told_with_the_last_good_step(why: str, last_good: int | None, good: bool) -> None:
    fault = injection("disk-full", 0)
    failure = {"type": "checkpoint-failed", "at": 2.0, "step": 8, "why": f"rank 0: OSError: {why}"}
    events = [injected(fault), committed(4), {**failure, "last_good": last_good}]
    job = {"state": "SUCCEEDED", "attempt": 1, "message": "", "result": {"result_digest": CALM}}
    shown = [Said(exit_code=0, printed="! checkpoint of step 8 failed: rank 0")]
    assert (look(fault, "", job=job, events=events, commands=shown).problems == ()) is good
    assert look(fault, "", job=job, events=events).problems


@pytest.mark.parametrize(("step", "good"), [(8, True), (16, True), (24, True), (4, False), (32, False)])
def test_the_checkpoint_that_a_full_disk_fails_is_the_one_under_way_or_the_next(step: int, good: bool) -> None:
    fault = dataclasses.replace(injection("disk-full", 0), step=16)
    failure = {"type": "checkpoint-failed", "at": 2.0, "step": step, "why": "rank 0: OSError: No space left"}
    job = {"state": "SUCCEEDED", "attempt": 1, "message": "", "result": {"result_digest": CALM}}
    shown = [Said(exit_code=0, printed=f"! checkpoint of step {step} failed: rank 0")]
    events = [injected(fault, 16), {**failure, "last_good": None}]
    assert (look(fault, "", job=job, events=events, commands=shown).problems == ()) is good


def test_the_cluster_that_died_is_told_and_the_job_resumed_by_hand() -> None:
    fault = injection("kill-holder", 0)
    died = "error: cluster 'faults' has died: process 7, which held all of it, has ended."
    lost = Said(exit_code=1, printed=f"a  RUNNING\n{died}\n")
    back = Said(exit_code=0, printed=HINTS)
    assert look(fault, "", commands=[lost, back], events=[]).problems == ()
    assert look(fault, "", commands=[dataclasses.replace(lost, printed="RUNNING"), back], events=[]).problems
    assert look(fault, "", commands=[dataclasses.replace(lost, exit_code=0), back], events=[]).problems


def test_seconds_are_counted_from_the_report_to_steps() -> None:
    assert look(injection("kill"), KILLED).report_s == pytest.approx(0.2)
    lost = look(injection("kill-agent"), LOST, events=[failed(LOST)])
    assert (lost.problems, lost.report_s) == ((), pytest.approx(0.3))
    late = look(injection("kill-agent"), LOST, events=[failed(LOST, at=12.0)])
    assert any("reported after" in problem for problem in late.problems)
    assert seconds_to_steps(Evidence()) == (None, None)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(1.0, 6), (2.0, 2), (3.0, 8)], (0.5, 1.5)),
        ([(1.0, 8), (2.0, 2), (3.0, 8)], (0.5, 1.5)),  # all had been made
        ([(1.0, 6), (2.0, 8)], (0.5, 0.5)),  # none was lost
        ([(1.0, 4), (1.6, 6), (2.0, 2), (3.0, 8)], (0.5, 1.5)),  # the report's clock is that of a new supervisor
        ([(1.0, 6)], (None, None)),
    ],
)
def test_a_new_step_is_one_that_had_not_been_made(
    steps: list[tuple[float, int]], expected: tuple[float | None, float | None]
) -> None:
    reports = [{"at": at, "rank": rank, "step": step} for at, step in steps for rank in (0, 1)]
    assert seconds_to_steps(Evidence(events=[failed(KILLED, at=1.5)], reports=reports)) == expected


def test_the_plan_asks_for_what_submit_knows_and_settings_that_fit() -> None:
    injections = plan(2)
    check_faults([parse_fault(one.fault) for one in injections], 2, 2)
    for one in injections:
        parse(find(one.workload).config_class(), dict(setting.split("=") for setting in one.settings))
    assert all(one.step in one.case.steps for one in injections)
    given = [setting.split("=") for one in injections for setting in one.settings]
    assert {int(value) for name, value in given if name.endswith("_per_dispatch")} == {REPORT_EVERY}
    assert {int(value) for name, value in given if name == "eval_every"} == {EVAL_EVERY}
    full = {(one.workload, one.place) for one in plan(8) if one.case.kind == "disk-full"}
    assert full == {("transformer", 0), ("transformer", 1), ("sharded-mcmc", 0), ("sharded-mcmc", 1),
                    ("independent-chains", 0)}  # fmt: skip


def test_a_sample_has_every_kind_and_keeps_the_numbers() -> None:
    whole = [*enumerate(plan(20))]
    chosen = sample(whole, 24)
    assert len(chosen) == 24 and {one.case.name for _, one in chosen} == set(BY_NAME)
    assert all(whole[number][1] == one for number, one in chosen)


def test_every_case_asks_for_a_sentence() -> None:
    def asks(case: Case) -> bool:
        return len(case.report) > 10

    assert all(map(asks, CASES))
