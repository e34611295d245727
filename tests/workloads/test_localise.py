"""Where copies differ: the element and its bits, on real ranks, against what was damaged."""

from typing import Any

import pytest

from tests.ranks import run_ranks

PROGRAMS = "tests.workloads.flip_programs"


def _ranks(name: str, *, num_hosts: int = 2, x64: bool = False, **kwargs: Any) -> Any:
    """What rank 0 returned; the others must say the same."""
    values = run_ranks(
        f"{PROGRAMS}:{name}", num_hosts=num_hosts, devices_per_host=4 // num_hosts, x64=x64, timeout_s=1500, **kwargs
    )
    assert all(value == values[0] for value in values)
    return values[0]


@pytest.mark.slow
@pytest.mark.parametrize(("num_hosts", "x64"), [pytest.param(1, False, marks=pytest.mark.long), (2, True)])
def test_single_bit_flips_of_every_dtype_are_found_in_their_place(num_hosts: int, x64: bool) -> None:
    cases = _ranks("flips", num_hosts=num_hosts, x64=x64)
    assert len(cases) >= 3 * 2 * (20 + 4 * x64)
    for case in cases:
        assert case["found"] == case["expected"], case
        assert case["named"], case


def test_damage_of_many_kinds_is_found_in_its_place() -> None:
    for case in _ranks("changes"):
        assert case["found"] == case["expected"], case


def test_a_hundred_megabytes_take_three_rounds_and_few_bytes() -> None:
    found = _ranks("large")
    assert found["index"] == [3, 17_000_003 - 3 * 5_000_001]
    assert (found["bits"], found["how"], len(found["culprits"])) == ([22], "majority", 1)
    assert (found["bad"][0], found["bad"][1] <= 1024) == (2, True)
    assert found["bad"][1] * found["bad"][2] >= 25_000_005 > (found["bad"][1] - 1) * found["bad"][2]
    assert found["rounds"] == 3 and max(found["posted"]) < 64_000
    assert found["clean_bytes"] < 500


def test_the_past_tells_which_of_two_copies_is_wrong_if_the_leaf_does_not_change() -> None:
    found = _ranks("past")
    assert found["statuses"] == ["ok"] * 4
    assert (found["data"]["leaf"], found["data"]["how"]) == ("data", "unchanged since step 3")
    assert found["data"]["culprits"] == [found["bad holder"]]
    for name in ("once", "stale", "both"):  # verified once; a parameter that missed its update; one that changes
        assert (found[name]["how"], found[name]["culprits"]) == ("unknown", []), name
    assert found["once"]["index"] == found["data"]["index"] == [1, 1]


def test_host_memory_is_searched_too() -> None:
    big, number, text, half, swapped = _ranks("host_memory")
    assert (big["index"], big["values"], big["bad"][0]) == ([1, 23_456], ["0.0", "1.0"], 1)
    assert (number["index"], number["hexes"]) == ([], ["0x3ff8000000000000", "0x4004000000000000"])
    assert (text["index"], text["values"]) == ([1], ["rank 0", "rank 1"])
    assert (half["hexes"], half["values"]) == (["0x0000", "0x3f80"], ["0", "1"])
    assert (swapped["bits"], swapped["values"]) == ([0], ["0", "1"]), "of an array in the other byte order too"


@pytest.mark.parametrize("num_checks", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_clean_checks_raise_no_alarm(num_checks: int) -> None:
    count, alarms, most_bytes = _ranks("clean", num_checks=num_checks)
    assert (count, alarms) == (num_checks, 0)
    assert most_bytes < 2_000
