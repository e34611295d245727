"""What is decided of a call from what its ranks say."""

from typing import Any

import pytest

from launcher.call_verdict import STANDING_S, Standing, part_ways
from launcher.error_text import fold, named, traceback_text


def answer(launches: int = 5, digest: str = "d", meetings: int = 2) -> dict[str, Any]:
    return {"outcome": "returned", "place": [launches, digest, meetings]}


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([answer()], ""),
        ([answer(), answer()], ""),
        ([answer(6), answer(), answer()], "different numbers of programs that span hosts (rank 0: 6, ranks 1-2: 5)"),
        ([answer(), answer(digest="e")], "the ranks have launched different programs"),
        ([answer(), answer(meetings=3)], "met unequally often (rank 0: 2, rank 1: 3)"),
    ],
)
def test_ranks_go_on_together_only_from_one_place(answers: list[dict[str, Any]], why: str) -> None:
    found = part_ways(answers)
    assert why in found and bool(found) == bool(why)


def test_ranks_that_only_wait_stand_and_those_that_work_do_not() -> None:
    waits = Standing(100.0, {0: 3.0, 2: 1.0})
    assert waits.stood_s(100.0 + STANDING_S, {0: 3.4, 2: 1.1}) == STANDING_S
    works = Standing(100.0, {0: 3.0, 2: 1.0})
    assert works.stood_s(104.0, {0: 7.0, 2: 1.0}) == 4.0, "too early to tell"
    assert works.stood_s(106.0, {0: 8.5, 2: 1.0}) == 0.0
    assert works.stood_s(106.0 + STANDING_S, {0: 8.6, 2: 1.0}) == STANDING_S, "it has stopped to work"
    assert works.stood_s(120.0, {}) == 14.0


def test_ranks_are_named_in_spans() -> None:
    assert named([3]) == "rank 3"
    assert named([0, 1, 2, 5]) == "ranks 0-2, 5"


def test_equal_texts_are_told_once() -> None:
    assert fold({0: "a", 1: "b", 2: "a"}) == "ranks 0, 2:\na\n\nrank 1:\nb"


def test_a_traceback_looks_as_pythons_own_and_finds_the_lines_of_a_notebook() -> None:
    line = test_ranks_are_named_in_spans.__code__.co_firstlineno
    first = {"frames": [["nowhere.py", 3, "f", "g()"]], "end": "KeyError: 'a'", "then": "Then:"}
    last = {"frames": [[__file__, line, "h", ""]], "end": "ValueError: b", "then": ""}
    assert traceback_text([first, last]) == (
        "Traceback (most recent call last):\n  File \"nowhere.py\", line 3, in f\n    g()\nKeyError: 'a'\n\nThen:\n\n"
        f'Traceback (most recent call last):\n  File "{__file__}", line {line}, in h\n'
        "    def test_ranks_are_named_in_spans() -> None:\nValueError: b"
    )
