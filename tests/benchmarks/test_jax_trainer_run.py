"""How a run of JaxTrainer with a fault is judged, from what it has left."""

import dataclasses

from jax_trainer_run import Transcript, without_numbers

CALM = "(Cleaner pid=77) Failed to query an actor. Continuing to monitor."
KILLED = Transcript(
    fault_at=100.0,
    lines=[
        (90.0, "Connection error, trying again"),
        (100.5, "(Cleaner pid=4711) Failed to query an actor. Continuing to monitor."),
        (101.0, "(Worker pid=3) Reporting training result 4"),
        (102.0, "\x1b[36m(Controller pid=12)\x1b[0m A worker died"),
        (103.0, "[FailurePolicy] RETRY"),
        (103.0, "[Rank 0 Error Snippet]:"),
        (103.0, "[Rank 1 Error Snippet]:"),
        (103.1, "[Rank 0 Error Snippet]:"),
    ],
    steps=[(95.0, 90), (99.9, 100), (112.0, 95), (113.0, 100), (114.5, 105)],
    digests=["a", "a"],
    exit_code=0,
)
USUAL = {without_numbers(CALM)}


def test_the_report_is_the_first_line_that_speaks_of_a_failure_and_is_not_usual() -> None:
    outcome = KILLED.outcome("kill", ["a", "a"], USUAL)
    assert outcome.seen == "(Controller pid=12) A worker died ... then lists errors of rank 0, 1"
    assert outcome.report_s == 2.0
    assert outcome.end == "right"


def test_a_step_that_is_made_again_is_not_useful() -> None:
    assert KILLED.outcome("kill", ["a", "a"], USUAL).new_s == 14.5
    stuck = dataclasses.replace(KILLED, steps=KILLED.steps[:4])
    assert stuck.outcome("kill", ["a", "a"], USUAL).new_s is None


def test_another_result_without_a_word_is_wrong() -> None:
    silent = dataclasses.replace(KILLED, lines=KILLED.lines[:3], digests=["b", "c"])
    outcome = silent.outcome("other-program", ["a", "a"], USUAL)
    assert (outcome.seen, outcome.report_s, outcome.new_s) == ("", None, None)
    assert outcome.end == "WRONG, exit code 0"


def test_a_run_that_does_not_end_says_so() -> None:
    hung = dataclasses.replace(KILLED, exit_code=None)
    assert hung.outcome("sleep", ["a", "a"], USUAL).end == "no end within 120 s of the report"
    assert dataclasses.replace(hung, lines=[]).outcome("sleep", ["a", "a"], USUAL).end == (
        "no end within 120 s of the fault"
    )
    assert dataclasses.replace(KILLED, exit_code=1).outcome("kill", ["a", "a"], USUAL).end == "no result, exit code 1"
