"""What the fault runs accept: the fault named at the right place and shown, and nothing that only looks like it."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from fault_cases import CASES, Case, Injection, plan, sample
from fault_evidence import Evidence, Said, seconds_to_steps
from fault_verdict import Outcome, judge

from launcher.faults import check_faults, parse_fault
from workloads.params import parse
from workloads.registry import find

CALM = "c" * 64
HINTS = (
    "\nnext:\n  spmd-launch results run-1 --output DIR\n  spmd-launch logs run-1\nrank 0 and rank 1 launched on laptop"
)
STEPS = [(0.9, 6), (2.0, 2), (3.0, 8), (4.0, 40)]
BY_KIND = {case.kind: case for case in CASES}

KILLED = "rank 1 on host faults-1 was killed by signal 9 (SIGKILL) during 'run, step 6 of 40': by somebody's hand"
SLEPT = (
    "rank 1 on host faults-1 made no progress for 10 s in 'run', step 6 of 40; rank 0 waits in 'run'; "
    "rank 1 is at inject.py:90 in Injector.sleep"
)
FROZEN = "rank 1 on host faults-1 has said nothing for 10 s: its process is stopped (state T), as by SIGSTOP"
LOST = "rank 1 on host faults-1 was lost during 'run, step 6 of 40': its agent cannot be reached"
SWAPPED = "ranks have launched different programs: launch 18: rank 0 launched 'train' where rank 1 launched 'sample'"
IN_ORDERS = (
    "ranks 0 on faults-0, 1 on faults-1 each raised LaunchOrderError: ranks have launched programs in different "
    "orders: launch 5: rank 0 launched 'sample' where rank 1 launched 'train'; launches at the report of step 8: "
    "rank 0 6, rank 1 5 during 'replica check, step 8 of 40'"
)
SKIPPED = "ranks have launched different programs: launches at the report of step 14: rank 0 10, rank 1 9"
OTHER_PROGRAM = (
    "ranks 0 on faults-0, 1 on faults-1 each raised ProgramMismatchError during 'run, step 6 of 40': program jit_train:"
    " rank 0 and rank 1 differ; nothing has run. First difference, line 19:\n"
    "  rank 0 on faults-0: %cst = dense<0.0>\n  rank 1 on faults-1: %cst = dense<1.0>\nEvery host must build the same"
)
OTHER_ENV = (
    "rank 0 on host faults-0 raised EnvironmentMismatchError during 'environment': the hosts do not run in the same "
    "environment; nothing has run:\n  option jax_default_matmul_precision: rank 0 (faults-0): highest; "
    "rank 1 (faults-1): bfloat16\nGive every host the same packages"
)
FLIPPED = (
    "ranks 0 on faults-0, 1 on faults-1 each raised ReplicaDivergenceError during 'run, step 6 of 40': replicas differ "
    "at step 6, in 1 of 18 leaves:\n  params/head: 3 x (faults-0/cpu:0, faults-0/cpu:1, faults-1/cpu:131072) against "
    "1 x (faults-1/cpu:131073); culprit: faults-1/cpu:131073 (majority)\n    first at [2, 3]: 0x1 (1) on "
    "faults-0/cpu:0, 0x9 (9) on faults-1/cpu:131073, bit 3; 1 of 8 elements differ"
)


def injection(kind: str, place: int = 1) -> Injection:
    return Injection(case=BY_KIND[kind], workload="transformer", step=6, place=place)


def failed(message: str, at: float = 1.2) -> dict[str, Any]:
    return {"type": "attempt-failed", "at": at, "attempt": 1, "message": message}


def injected(fault: Injection) -> dict[str, Any]:
    told = {"kind": fault.case.kind, "place": fault.place}
    return {"type": "injected", "at": 1.0, "rank": fault.rank, "fault": told, "step": fault.step}


def look(fault: Injection, message: str, more: Sequence[Mapping[str, Any]] = (), **changed: Any) -> Outcome:
    """The verdict on a run that ended as it should, but for what is changed."""
    refused = fault.case.ends == "refused"
    result = None if refused else {"result_digest": CALM}
    state, attempt = ("FAILED", 1) if refused else ("SUCCEEDED", 2)
    job = {"state": state, "attempt": attempt, "message": message, "result": result}
    printed = f"! {message}; attempt 2 restarts from step 0{HINTS}"
    steps = [{"at": at, "rank": rank, "step": step} for at, step in STEPS for rank in (0, 1)]
    evidence = Evidence(
        commands=[Said(exit_code=int(refused), printed=printed)],
        job=job,
        events=[injected(fault), *more, failed(message)],
        reports=steps,
    )
    return judge(5, fault, dataclasses.replace(evidence, **changed), CALM, 1.0)


FLIP = {
    "type": "flipped",
    "at": 1.0,
    "rank": 1,
    "leaf": "params/head",
    "device": 3,
    "index": 11,
    "element": [2, 3],
    "bit": 3,
}
RIGHT = [
    ("kill", 1, KILLED, ()),
    ("raise", 1, "rank 1 on host faults-1 raised RuntimeError: raised by --inject at step 6 during 'run'", ()),
    ("exit", 1, "rank 1 on host faults-1 ended with exit code 3 during 'run, step 6 of 40', without a", ()),
    ("oom", 1, "rank 1 on host faults-1 raised MemoryError: : memory ran out, with 0.63 GiB used by the process", ()),
    ("freeze", 1, FROZEN, ()),
    ("sleep", 1, SLEPT, ()),
    ("kill-agent", 1, LOST, ()),
    ("kill-supervisor", 0, "the supervisor was ended and started again", ()),
    ("skip-collective", 1, SKIPPED, ()),
    ("swap-programs", 1, SWAPPED, ()),
    ("swap-programs", 0, IN_ORDERS, ()),
    ("other-program", 1, OTHER_PROGRAM, ()),
    ("other-env", 1, OTHER_ENV, ()),
    ("flip-bit", 3, FLIPPED, (FLIP,)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "place", "message", "events"), RIGHT)
def test_the_right_sentence_passes(kind: str, place: int, message: str, events: Sequence[Mapping[str, Any]]) -> None:
    assert look(injection(kind, place), message, events).problems == ()


@pytest.mark.parametrize(
    "kind", [kind for kind, place, *_ in RIGHT if place and kind not in ("swap-programs", "other-program")]
)
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
    assert look(injection("skip-collective", place), SWAPPED.replace("sample", "train")).problems
    assert look(injection("skip-collective", place), f"{text}launches until the end").problems
    assert bool(look(injection("skip-collective", place), SKIPPED).problems) is (place == 0)


def test_a_report_that_was_not_shown_fails() -> None:
    outcome = look(injection("kill"), KILLED, commands=[Said(exit_code=0, printed=HINTS)])
    assert outcome.problems == (f"the report was not shown: {KILLED!r}",)


def test_a_watchdog_that_blames_another_fails() -> None:
    finding = {"type": "watchdog", "at": 1.1, "finding": "stuck", "fatal": True, "ranks": [0], "text": ""}
    assert any("blames ranks [0]" in problem for problem in look(injection("freeze"), FROZEN, (finding,)).problems)


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


def test_leaves_that_are_not_shown_name_no_culprit() -> None:
    later = FLIPPED.replace("differ at step 6", "differ at step 8")
    told = f"{later}\n  params/tail: 3 x (faults-0/cpu:0, faults-0/cpu:1, faults-1/cpu:131072) against 1 x "
    right, wrong = (
        f"{told}({name}); culprit: {name} (majority)" for name in ("faults-1/cpu:131073", "faults-1/cpu:131072")
    )
    for more in ("", "\n  and 8 more"):
        assert look(injection("flip-bit", 3), f"{right}{more}", (FLIP,)).problems == ()
        assert look(injection("flip-bit", 3), f"{wrong}{more}", (FLIP,)).problems


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


@pytest.mark.parametrize(("skipped", "good"), [([16], True), ([], False), ([8], False)])
def test_a_damaged_checkpoint_must_be_skipped(skipped: list[int], good: bool) -> None:
    fault, why = injection("corrupt-checkpoint"), "the data cannot be read (ValueError)"
    events = [
        {"type": "damaged", "at": 1.1, "step": 16},
        *({"type": "checkpoint-skipped", "at": 2.0, "step": step, "why": why} for step in skipped),
        {"type": "resumed", "at": 2.1, "step": 8},
    ]
    shown = [Said(exit_code=0, printed=f"! {KILLED}; attempt 2\n! checkpoint of step 16 is left out: {why}")]
    assert look(fault, KILLED, events[1:]).problems == ("no checkpoint was damaged",)
    assert (look(fault, KILLED, events, commands=shown).problems == ()) is good
    assert look(fault, KILLED, events).problems


@pytest.mark.parametrize(("why", "last_good", "good"), [("File too large", 8, True), ("File too large", None, False),
                                                        ("KeyError", 8, False)])  # fmt: skip
def test_a_full_disk_is_told_with_the_last_good_step(why: str, last_good: int | None, good: bool) -> None:
    fault = injection("disk-full", 0)
    failure = {"type": "checkpoint-failed", "at": 2.0, "step": 16, "why": f"rank 0: OSError: {why}"}
    events = [injected(fault), {"type": "checkpoint", "at": 0.9, "step": 8}, {**failure, "last_good": last_good}]
    job = {"state": "SUCCEEDED", "attempt": 1, "message": "", "result": {"result_digest": CALM}}
    shown = [Said(exit_code=0, printed="! checkpoint of step 16 failed: rank 0")]
    assert (look(fault, "", job=job, events=events, commands=shown).problems == ()) is good
    assert look(fault, "", job=job, events=events).problems


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


def test_a_sample_has_every_kind_and_keeps_the_numbers() -> None:
    whole = [*enumerate(plan(20))]
    chosen = sample(whole, 24)
    assert len(chosen) == 24 and {one.case.kind for _, one in chosen} == set(BY_KIND)
    assert all(whole[number][1] == one for number, one in chosen)


def test_every_case_asks_for_a_sentence() -> None:
    def asks(case: Case) -> bool:
        return len(case.report) > 10

    assert all(map(asks, CASES))
