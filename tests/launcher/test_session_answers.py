"""What a caller is told of a call, and what the ranks may forget."""

import gc
import io
import pickle
from typing import Any

import numpy as np
import pytest

from launcher.errors import UserError
from launcher.session.answers import raise_if_different, raise_if_raised
from launcher.session.errors import GangEndedError, GangError
from launcher.session.handles import Handle, Shelf
from launcher.travel import Pickler

STRUCTURE = [None, "s", "PyTreeDef(*)"]


def returned(*leaves: list[str]) -> dict[str, Any]:
    return {"outcome": "returned", "leaves": [STRUCTURE, *leaves]}


def raised(end: str) -> dict[str, Any]:
    return {"outcome": "raised", "error": {"parts": [{"frames": [], "end": end, "then": ""}]}}


def test_equal_values_pass() -> None:
    raise_if_different([returned(["['a']", "1", "x"])] * 3, "f")
    raise_if_different([returned(["['a']", "1", "x"]), {"outcome": "returned"}], "f")  # equal ones are not sent again


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([returned(["['a']", "2", "y"])] * 2, "value['a']: rank 0 x, ranks 1-2 y"),
        ([returned(["['a']", "2", "x"])], "rank 0 x, rank 1 x (equal as text, but not bit for bit)"),
        ([returned(["['b']", "1", "x"])], "value['a']: rank 0 x, rank 1 absent\n  value['b']: rank 0 absent, rank 1 x"),
        (
            [{"outcome": "returned", "leaves": [[None, "t", "PyTreeDef(None)"]]}],
            "structure: rank 0 PyTreeDef(*), rank 1",
        ),
    ],
)
def test_different_values_are_told_by_leaf_and_rank(others: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(GangError) as error:
        raise_if_different([returned(["['a']", "1", "x"]), *others], "f")
    assert words in str(error.value) and "gang.run_each" in str(error.value)


def test_only_the_first_of_many_differences_are_listed() -> None:
    def many(value: str) -> dict[str, Any]:
        return returned(*[[f"[{index}]", value, value] for index in range(9)])

    with pytest.raises(GangError, match=r"value\[4\].*\n  and 4 more"):
        raise_if_different([many("1"), many("2")], "f")


def test_what_was_raised_is_told_by_rank() -> None:
    raise_if_raised([returned(), returned()], "f")
    with pytest.raises(GangError, match="f: all ranks raised; the gang can be used\n\nranks 0-1:\nOSError: x"):
        raise_if_raised([raised("OSError: x")] * 2, "f")
    with pytest.raises(GangError, match=r"ranks 1, 3 raised, while ranks 0, 2 returned") as error:
        raise_if_raised([returned(), raised("a"), returned(), raised("b")], "f")
    assert error.value.by_rank == {1: "a", 3: "b"}
    copy = pickle.loads(pickle.dumps(error.value))
    assert (str(copy), copy.by_rank) == (str(error.value), error.value.by_rank)
    assert str(pickle.loads(pickle.dumps(GangEndedError("why")))) == "why"


# -- handles


def ones(handle: Handle) -> np.ndarray:
    return np.ones(handle.shape, handle.dtype)


def handle_of(shelf: Shelf, number: int, index: int, *, rank: int | None = None) -> Handle:
    """As a rank would send it, which has a set in the place of an array."""
    buffer = io.BytesIO()
    told = (number, index, (2,), "float32", "on a device", False)
    Pickler(buffer, lambda value: told if isinstance(value, set) else None).dump({"x": {1}})
    loaded: Handle = shelf.loads(buffer.getvalue(), rank)["x"]
    return loaded


def test_a_handle_is_fetched_where_numpy_wants_an_array() -> None:
    handle = handle_of(Shelf(ones), 1, 0)
    assert np.array_equal(np.asarray(handle), [1, 1]) and np.asarray(handle, np.float64).dtype == np.float64
    assert (handle.ndim, handle.size, len(handle), handle.sharding) == (1, 2, 2, "on a device")
    assert repr(handle) == "Handle(float32[2] on each host)"
    with pytest.raises(ValueError, match="cannot be had without a copy"):
        np.asarray(handle, copy=False)
    with pytest.raises(TypeError, match=r"fetch\(\) gives the array"):
        pickle.dumps(handle)


def test_what_nobody_holds_is_dropped_once() -> None:
    shelf = Shelf(ones)
    first, second = handle_of(shelf, 1, 0), handle_of(shelf, 1, 1)
    parts = [handle_of(shelf, 2, 0, rank=rank) for rank in (0, 1)]  # one array a rank, under one name
    assert shelf.take_dropped() == []
    del first, parts[0]
    gc.collect()
    assert shelf.take_dropped() == [(1, 0)] and shelf.take_dropped() == []
    shelf.drop_call(3)
    del parts
    gc.collect()
    assert shelf.take_dropped() == [(3, None), (2, 0)]
    assert second.shape == (2,)


def test_handles_of_another_gang_are_refused() -> None:
    old, new = Shelf(ones), Shelf(ones)
    handle = handle_of(old, 1, 0)
    assert old.dumps([handle], "it")
    with pytest.raises(UserError, match="made by a gang that has ended, or by another one"):
        new.dumps([handle], "it")
    same_number = handle_of(new, 1, 0)
    with pytest.raises(UserError, match="made by a gang that has ended"):
        new.dumps([handle], "it")
    assert new.dumps([same_number], "it")
