"""Hosts of TPU slices: their order, whether they are whole, and what a rank is told."""

import pytest
from ray.util.tpu import get_tpu_coordinator_env_vars

from cluster.accelerators import CPU, Accelerator
from cluster.slices import SlicePlace, emulated_place, rank_units, rank_variables, slice_problems

WHOLE = "expected [0, 1]: all of them or none"
V4_16 = Accelerator.parse("tpu-v4-16")


def place(name: str, worker: int, tpu_type: str = "v4-16") -> SlicePlace:
    return SlicePlace(slice=name, worker=worker, tpu_type=tpu_type)


def test_ranks_are_counted_by_slice_then_worker() -> None:
    places = {"h0": place("b", 1), "h1": place("a", 0), "h2": place("b", 0), "h3": place("a", 1)}
    assert rank_units(places) == [("h2", "h0"), ("h1", "h3")]


def test_hosts_of_no_slice_are_each_for_themselves() -> None:
    assert rank_units({"h1": None, "h0": None}) == [("h1",), ("h0",)]


def test_worker_ten_comes_after_worker_nine() -> None:
    places = {f"h{worker}": place("a", worker) for worker in (10, 9, 1)}
    assert rank_units(places) == [("h1", "h9", "h10")]


def test_emulated_hosts_are_whole_slices() -> None:
    places = {f"h{index}": emulated_place(V4_16, "lab", index) for index in range(4)}
    assert places["h3"] == place("lab-slice-1", 1)
    assert slice_problems(V4_16, places) == []
    assert emulated_place(CPU, "lab", 0) is emulated_place(Accelerator.parse("H100:8"), "lab", 0) is None


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([place("a", 0), None], "h1: does not say of which TPU slice it is"),
        ([place("a", 0), place("a", 1, "v4-32")], "h1: is of a v4-32 slice (a), expected v4-16"),
        ([place("a", 0), place("b", 1)], "slice a: has workers [0] here (h0), expected [0, 1]: all of them or none"),
        (
            [place("a", 0), place("a", 0)],
            "slice a: has workers [0, 0] here (h0, h1), expected [0, 1]: all of them or none",
        ),
    ],
)
def test_what_is_no_whole_slice_is_named(places: list[SlicePlace | None], said: str) -> None:
    found = slice_problems(V4_16, {f"h{k}": one for k, one in enumerate(places)})
    assert said in found
    assert slice_problems(CPU, {f"h{k}": None for k in range(2)}) == []


def test_a_job_on_one_slice_is_told_nothing() -> None:
    assert rank_variables([place("a", 0), place("a", 1)], ["10.0.0.1", "10.0.0.2"]) == [{}, {}]
    assert rank_variables([None, None], ["10.0.0.1", "10.0.0.2"]) == [{}, {}]


def test_a_job_on_several_slices_is_told_of_those_that_it_has() -> None:
    places = [place("c", 0), place("c", 1), place("a", 0), place("a", 1)]
    addresses = [f"10.0.0.{k}" for k in range(4)]
    variables = rank_variables(places, addresses)
    for rank, (slice_id, workers) in enumerate([(0, "10.0.0.0,10.0.0.1")] * 2 + [(1, "10.0.0.2,10.0.0.3")] * 2):
        assert variables[rank] == get_tpu_coordinator_env_vars("10.0.0.0", 2, slice_id) | {
            "TPU_WORKER_ID": str(rank % 2), "TPU_WORKER_HOSTNAMES": workers,
        }  # fmt: skip
