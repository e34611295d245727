"""Who is stuck, silent or slow: a table of moments, and what is found in each."""

import random
import statistics
from typing import Any

import pytest

from launcher.timeline import RankProgress
from launcher.watchdog import Bounds, Finding, bound_s, judge

RUN = {"phase": "run", "step": 20, "total": 100, "moves": 20, "reports": 10, "launches": 21, "usual_s": 0.4,
       "longest_s": 0.5}  # fmt: skip


def ranks(*changes: dict[str, Any]) -> list[RankProgress]:
    """Ranks in mid-run, each but for its own changes."""
    return [RankProgress(rank=rank, host=f"h{rank}", **(RUN | change)) for rank, change in enumerate(changes)]


def outline(found: list[Finding]) -> list[tuple[str, tuple[int, ...], bool]]:
    return [(finding.kind, finding.ranks, finding.fatal) for finding in found]


BEHIND = {"launches": 20, "stood_s": 12.0}
WAITS = {"stood_s": 12.0}
SCRIPT = {"phase": "script", "step": 0, "total": 0, "usual_s": None, "longest_s": None}

NO_STEPS = {"step": 0, "total": 0, "reports": 0, "launches": 0, "usual_s": None}
ALONE = SCRIPT | {"moves": 1, "reports": 0, "launches": 0, "stood_s": 9e3}


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("all move", ([{}, {}], [])),
        ("behind, not yet for long", ([WAITS, BEHIND | {"stood_s": 7.4}], [])),
        ("behind, so long that it is told within 10 s", ([WAITS, BEHIND | {"stood_s": 7.5}], [("stuck", (1,), True)])),
        ("behind by a launch", ([WAITS, BEHIND], [("stuck", (1,), True)])),
        ("behind by a report", ([WAITS, {"reports": 9, "launches": 30, "stood_s": 12.0}], [("stuck", (1,), True)])),
        ("behind by a phase, of a rank that reports less often: it has nothing to compute",
         ([{"moves": 21, "reports": 6, "phase": "gather", "stood_s": 61.0}, {"stood_s": 61.0}],
          [("stuck", (1,), True)])),
        ("the one that waits is not blamed", ([BEHIND, WAITS, WAITS], [("stuck", (0,), True)])),
        ("two are behind", ([WAITS, BEHIND, BEHIND], [("stuck", (1, 2), True)])),
        ("two are behind, and one of them moves", ([WAITS, BEHIND, BEHIND | {"stood_s": 1.0}], [])),
        ("the peer has finished", ([{"done": True, "stood_s": 50.0}, BEHIND], [("stuck", (1,), True)])),
        ("all have finished", ([{"done": True, "stood_s": 50.0}] * 2, [])),
        ("slow steps: 5 x the median", ([WAITS, BEHIND | {"usual_s": 4.0, "stood_s": 17.4}], [])),
        ("slow steps, too long", ([WAITS, BEHIND | {"usual_s": 4.0, "stood_s": 17.5}], [("stuck", (1,), True)])),
        ("a long step now and then: 2 x the longest", ([WAITS, BEHIND | {"longest_s": 7.0}], [])),
        ("no step is known yet", ([WAITS, BEHIND | {"usual_s": None, "stood_s": 119.0}], [])),
        ("still no step", ([WAITS, BEHIND | {"usual_s": None, "stood_s": 121.0}], [("stuck", (1,), True)])),
        ("results take their time", ([{"done": True}, {"step": 100, "stood_s": 300.0}], [])),
        ("compiles on", ([WAITS, BEHIND | {"phase": "compile train", "stood_s": 59.0}], [])),
        (
            "compiles long after the others have",
            ([WAITS, BEHIND | {"phase": "compile train", "stood_s": 61.0}], [("late-compile", (1,), False)]),
        ),
        (
            "compiles for ever",
            ([WAITS, BEHIND | {"phase": "compile train", "stood_s": 1801.0}], [("stuck", (1,), True)]),
        ),
        ("saves", ([WAITS, BEHIND | {"phase": "checkpoint", "stood_s": 599.0}], [])),
        ("saves for ever", ([WAITS, BEHIND | {"phase": "checkpoint", "stood_s": 601.0}], [("stuck", (1,), True)])),
        ("gathers for ever", ([WAITS, BEHIND | {"phase": "gather", "stood_s": 61.0}], [("stuck", (1,), True)])),
        ("a script's rank is behind by a launch", ([WAITS | SCRIPT, BEHIND | SCRIPT | {"stood_s": 29.0}], [])),
        ("a script's rank is far behind",
         ([WAITS | SCRIPT, BEHIND | SCRIPT | {"stood_s": 9e3}], [("stuck", (1,), False)])),
        ("a script's rank does not come to the rendezvous", (
            [{"phase": "rendezvous", "moves": 2, "launches": 0, "stood_s": 301.0},
             SCRIPT | {"moves": 1, "launches": 0, "stood_s": 301.0}], [("stuck", (1,), True)])),
        ("a script's rank goes on when another has ended",
         ([{**ALONE, "done": True}, ALONE, ALONE], [])),
        ("a script's rank goes on when another has ended, which is told where launches are watched",
         ([{**ALONE, "done": True, "launches": 3}, ALONE], [("stuck", (1,), False)])),
        ("a script's rank loads before its first launch", ([ALONE | {"launches": 1}, ALONE], [("stuck", (1,), False)])),
        ("a script's rank goes on where others have met without it", ([ALONE | {"moves": 3}, ALONE], [])),
        ("a script's rank is waited for in the rendezvous, and another has ended", (
            [{**ALONE, "done": True}, {"phase": "rendezvous", "moves": 2, "launches": 0, "stood_s": 9e3}, ALONE],
            [("stuck", (2,), True)])),
        ("a script's rank waits in the rendezvous for one that has ended", (
            [{**ALONE, "done": True}, {"phase": "rendezvous", "moves": 2, "launches": 0, "stood_s": 121.0}],
            [("stuck", (1,), True)])),
        ("all at one place", ([WAITS, WAITS], [("together", (0, 1), False)])),
        ("all at one place for long", ([{"stood_s": 121.0}] * 2, [("together", (0, 1), True)])),
        ("one long program without a report", ([{"stood_s": 9e3, "usual_s": None}] * 2, [("together", (0, 1), False)])),
        ("a phase of the workload's own", ([{"stood_s": 9e3, "phase": "mine"}] * 2, [("together", (0, 1), False)])),
        ("all hang in a gather", ([{"stood_s": 301.0, "phase": "gather"}] * 2, [("together", (0, 1), True)])),
        ("a lone rank hangs", ([{"stood_s": 121.0}], [("together", (0,), True)])),
        ("stopped", ([WAITS, {"state": "T", "silent_s": 7.5}], [("silent", (1,), True)])),
        ("stopped for a moment", ([{}, {"state": "T", "silent_s": 7.4}], [])),
        ("stopped after its result", ([{}, {"state": "T", "silent_s": 11.0, "done": True}], [("silent", (1,), True)])),
        ("stopped while it compiles", ([{}, {"state": "T", "silent_s": 11.0, "phase": "compile train"}],
                                       [("silent", (1,), True)])),
        ("holds Python's lock", ([{}, {"state": "R", "silent_s": 11.0}], [("silent", (1,), False)])),
        ("imports hold Python's lock", ([{}, {"state": "R", "silent_s": 11.0, "phase": "import"}], [])),
        ("holds Python's lock and others wait", (
            [WAITS, BEHIND | {"state": "R", "silent_s": 11.0}], [("silent", (1,), False), ("stuck", (1,), True)])),
        ("a host hesitates", ([WAITS, BEHIND | {"host_silent_s": 5.0}], [])),
        ("a host is suspected", ([WAITS, BEHIND | {"host_silent_s": 9.5}], [("host-silent", (1,), False)])),
        ("a host is lost", ([WAITS, BEHIND | {"host_silent_s": 15.0}], [("host-silent", (1,), True)])),
        ("a host is lost after its rank's result", ([{}, {"host_silent_s": 15.0, "done": True}],
                                                    [("host-silent", (1,), True)])),
        ("a host is silent after its rank has ended", ([{}, {"host_silent_s": 99.0, "done": True, "ended": True}], [])),
        ("slow", ([{"own_step_s": 0.2, "own_share": 0.5}, {"own_step_s": 0.4, "own_share": 1.0}],
                  [("slow", (1,), False)])),
        ("a little slow", ([{"own_step_s": 0.3, "own_share": 0.7}, {"own_step_s": 0.4, "own_share": 1.0}], [])),
        ("slow where it costs nothing", (
            [{"own_step_s": 0.001, "own_share": 0.01}, {"own_step_s": 0.004, "own_share": 0.04}], [])),
        ("one is not known yet", ([{"own_step_s": 0.2, "own_share": 0.5}, {}], [])),
        ("slow, of three", ([{"own_step_s": 0.2, "own_share": 0.4}] * 2 + [{"own_step_s": 0.5, "own_share": 1.0}],
                            [("slow", (2,), False)])),
        ("nobody waits for a rank that is alone", ([{"own_step_s": 0.5, "own_share": 1.0}], [])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_table(moment: str, expected: tuple[list[dict[str, Any]], list[Any]]) -> None:
    changes, found = expected
    assert outline(judge(ranks(*changes))) == found


def texts(*changes: dict[str, Any]) -> list[str]:
    return [finding.text for finding in judge(ranks(*changes))]


def test_a_stuck_rank_is_told_with_what_the_others_wait_for() -> None:
    (text,) = texts(WAITS | {"program": "train"}, BEHIND)
    assert text == (
        "made no progress for 12 s (it usually reports every 0.4 s) in 'run', step 20 of 100, launch 20; "
        "rank 0 waits in 'run', step 20 of 100, launch 21 ('train')"
    )


def test_a_stuck_rank_whose_threads_do_not_run_either_is_told_as_such() -> None:
    (text,) = texts(WAITS, BEHIND | {"state": "S", "silent_s": 9.6})
    why = "its process sleeps (state S) in C++ code that holds Python's lock"
    assert f"launch 20; it has said nothing for 10 s: {why}; rank 0 waits in" in text


def test_equal_waits_are_one_clause() -> None:
    (text,) = texts(BEHIND, WAITS, WAITS, {"done": True})
    assert text.endswith("; ranks 1, 2 wait in 'run', step 20 of 100, launch 21; rank 3 is done")


def test_a_rank_that_has_ended_without_coming_is_told_as_such() -> None:
    ended = ALONE | {"done": True}
    (text,) = texts(ended, {"phase": "rendezvous", "moves": 2, "stood_s": 121.0} | NO_STEPS, ended)
    assert text.endswith("for 121 s in 'rendezvous'; ranks 0, 2 have ended without coming there")


@pytest.mark.parametrize(
    ("state", "words"),
    [("R", "holds Python's lock"), ("S", "sleeps"), ("D", "disk"), ("t", "debugger"), ("?", "'?'")],
)
def test_silence_is_told_with_the_state_of_the_process(state: str, words: str) -> None:
    (text,) = texts({}, {"state": state, "silent_s": 11.0})
    assert text.startswith("has said nothing for 11 s: ") and words in text


def test_a_stopped_process_is_called_stopped_with_what_the_others_wait_in() -> None:
    stopped = "has said nothing for 11 s: its process is stopped (state T), as by SIGSTOP"
    frozen = {"state": "T", "silent_s": 11.0}
    at_its_place = "rank 0 waits in 'run', step 20 of 100, launch 21"
    assert texts({}, frozen) == [f"{stopped}; {at_its_place}"]
    assert texts({"phase": "gather", "moves": 21}, frozen) == [
        f"{stopped}; rank 0 waits in 'gather', step 20 of 100, launch 21"
    ]
    behind = {"phase": "gather", "launches": 20}
    assert texts(frozen, behind | {"stood_s": 7.9}) == [stopped]  # it may still be on its way
    assert texts(frozen, behind | {"stood_s": 8.0}) == [
        f"{stopped}; rank 1 waits in 'gather', step 20 of 100, launch 20"  # for the coordination service of rank 0
    ]
    assert texts(frozen, behind | {"stood_s": 60.0, "phase": "compile train"}) == [stopped]  # which takes its time
    assert texts({}, frozen, frozen) == [f"{stopped}; {at_its_place}"] * 2


def test_a_slow_rank_is_told_with_its_ratio() -> None:
    (text,) = texts({"own_step_s": 0.2, "own_share": 0.5}, {"own_step_s": 0.4, "own_share": 1.0})
    assert "2.0 times the median of the others (0.2 s)" in text


def test_bounds_can_be_given() -> None:
    assert outline(judge(ranks(WAITS, BEHIND), Bounds(stuck_s=30.0))) == []
    assert bound_s(ranks({})[0], Bounds(stuck_s=30.0, naming_s=5.0)) == 25.0


@pytest.mark.parametrize("num_ranks", [2, 3, 8, 33])
def test_each_rank_is_held_against_the_median_of_the_others(num_ranks: int) -> None:
    rng = random.Random(num_ranks)
    own = [rng.choice([0.1, 0.2, 0.3, rng.random()]) for _ in range(num_ranks)]
    ranks = [
        RankProgress(rank=rank, host=f"h{rank}", phase="run", own_step_s=seconds, own_share=1.0)
        for rank, seconds in enumerate(own)
    ]
    slow = [finding.ranks[0] for finding in judge(ranks)]
    others = [statistics.median(own[:rank] + own[rank + 1 :]) for rank in range(num_ranks)]
    assert slow == [rank for rank in range(num_ranks) if own[rank] > Bounds().slow_ratio * others[rank]]
