"""An attempt after a fault goes on from the newest good checkpoint, and from the step that was said."""

from collections.abc import Sequence

import pytest
from fault_evidence import Said

from tests.benchmarks.fault_story import KILLED, SWAPPED, committed, failed, injected, injection, look, restart

AT_16 = "attempt 2 restarts from step 16"


def problems(done: Sequence[int], said: Sequence[str], step: int, shown: bool = True) -> tuple[str, ...]:
    """Of a kill where so much was committed and said, and the second attempt went on from `step`."""
    after = restart(*said, step=step)
    commands = [Said(exit_code=0, printed="\n".join([KILLED, *(said if shown else [])]))]
    return look(injection("kill"), KILLED, [*map(committed, done)], after, commands=commands).problems


def test_work_that_was_committed_is_not_lost() -> None:
    assert problems([8, 16], [AT_16], 16) == ()
    assert "lost work: attempt 2 went on from step 8, not 16" in problems([8, 16], [AT_16], 8)
    corrected = [AT_16, "attempt 2 starts from step 0, not from step 16"]
    assert problems([8, 16], corrected, 0) == ("lost work: attempt 2 went on from step 0, not 16",)


def test_a_commit_of_which_nobody_has_told_may_count() -> None:
    said = "attempt 2 restarts from step 8"
    assert problems([8], [said, "attempt 2 starts from step 16, not from step 8"], 16) == ()
    assert problems([8], [said], 16) == (f"it was said that {said!r}, and it did from step 16",)
    assert problems([], ["attempt 2 starts from step 0: no checkpoint"], 0) == ()


@pytest.mark.parametrize(
    "said",
    [
        ["attempt 7 restarts from step 16"],
        ["attempt 2 restarts from step 999"],
        ["attempt 2 restarts from step 8"],
        ["attempt 2 restarts from step 999", "attempt 2 starts from step 16, not from step 999"],
        ["attempt 3 restarts from step 16", AT_16],
        [],
    ],
)
def test_what_is_said_of_a_restart_is_so(said: list[str]) -> None:
    assert problems([8, 16], said, 16)


def test_what_is_said_of_a_restart_is_shown() -> None:
    assert problems([8, 16], [AT_16], 16, shown=False) == (f"it was not shown: {AT_16!r}",)


def test_every_attempt_is_on_record_and_tells_once_where_it_starts() -> None:
    kill = injection("kill")
    assert "attempts [1] are on record, not [1, 2]" in look(kill, KILLED, after=[]).problems
    assert any(
        "[1, 3] are on record" in problem for problem in look(kill, KILLED, after=restart(step=0, number=3)).problems
    )
    unsaid = restart("attempt 2 starts from step 0: no checkpoint", step=0)[:-1]
    assert "attempt 2 told 0 times what it goes on from" in look(kill, KILLED, after=unsaid).problems


def test_a_cluster_that_died_loses_no_work_either() -> None:
    commands = [
        Said(exit_code=1, printed="RUNNING\nerror: cluster 'faults' has died: process 7"),
        Said(exit_code=0, printed="next"),
    ]
    fault = injection("kill-holder", 0)
    for step, good in ((8, True), (0, False)):
        after = restart(step=step)
        assert (look(fault, "", after=after, events=[committed(8)], commands=commands).problems == ()) is good


def test_what_is_refused_has_no_second_attempt() -> None:
    fault = injection("swap-programs")
    twice = [injected(fault), failed(SWAPPED), *restart(step=0)]
    assert "attempts [1, 2] are on record, not [1]" in look(fault, SWAPPED, events=twice).problems
