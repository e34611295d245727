"""What is done for many hosts costs each of them the same: operations are counted, nothing is timed."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from scale_cases import CASES, Step

FEW, MANY = 32, 128
MORE_THAN_LINEAR = 1.5  # a quadratic part of any weight would be 4


class Host(str):
    """A host's name; comparing it, and looking it up, are calls, so that what C code does is counted too."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return str.__hash__(self)


def operations(step: Step) -> int:
    """Calls of Python and C functions in one step, after one that warms up."""
    step()
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", CASES)
def test_a_host_costs_the_same_among_many(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scale_cases.names", lambda num_hosts: [Host(f"host-{number}") for number in range(num_hosts)])
    few, many = (operations(CASES[name](num_hosts, tmp_path)) for num_hosts in (FEW, MANY))
    assert many <= MORE_THAN_LINEAR * MANY / FEW * few, f"{few} calls for {FEW} hosts, {many} for {MANY}"
