"""`spmd_map` on one host of eight devices, two of four and four of two: the same bits."""

from typing import Any

import numpy as np
import pytest

from tests.ranks import run_ranks

LAYOUTS = [(1, 8), (2, 4)]


def _run(name: str, num_hosts: int, devices_per_host: int) -> list[dict[str, Any]]:
    target = f"tests.workloads.spmd_map_programs:{name}"
    return run_ranks(target, num_hosts=num_hosts, devices_per_host=devices_per_host)


def _joined(parts: list[list[Any]]) -> list[Any]:
    """Rows of all ranks, in order."""
    return [value for _, values in sorted(part for rank in parts for part in rank) for value in values]


@pytest.fixture(scope="module")
def guides() -> dict[int, list[dict[str, Any]]]:
    return {num_hosts: _run("guide", num_hosts, devices) for num_hosts, devices in LAYOUTS}


@pytest.fixture(scope="module")
def mores() -> dict[int, list[dict[str, Any]]]:
    return {num_hosts: _run("more", num_hosts, devices) for num_hosts, devices in [*LAYOUTS, (4, 2)]}


@pytest.fixture(scope="module")
def refused() -> dict[str, str]:
    (messages,) = _run("refused", 1, 8)
    return messages


@pytest.mark.parametrize(("num_hosts", "devices"), LAYOUTS)
def test_the_noisy_matmul_sees_its_rows_and_its_own_key(
    guides: dict[int, list[dict[str, Any]]], num_hosts: int, devices: int
) -> None:
    for rank in guides[num_hosts]:
        assert rank["shapes"] == [[16, 5], [8, 2, 5], [16, 5], [8], [8]]
        assert rank["difference"] < 1e-5
        own = range(rank["rank"] * devices, (rank["rank"] + 1) * devices)
        line = "[rank {}] shard {}: matrix (8, 5), data (2, 8)"
        assert rank["lines"] == sorted(line.format(rank["rank"], shard) for shard in own for _ in range(2))


def test_the_guide_gives_the_same_bits_on_every_layout(guides: dict[int, list[dict[str, Any]]]) -> None:
    for name in ("typed", "legacy", "reshaped"):
        one, two = (_joined([rank[name] for rank in guides[num_hosts]]) for num_hosts, _ in LAYOUTS)
        assert one == two, name
        assert np.shape(one) == (16, 5)
    assert guides[1][0]["typed"] == guides[1][0]["legacy"] == guides[1][0]["reshaped"]


def test_dice_come_as_their_own_class_with_a_scalar_for_each_shard(guides: dict[int, list[dict[str, Any]]]) -> None:
    sixes = {}
    for num_hosts, ranks in guides.items():
        assert {rank["dice"][0] for rank in ranks} == {"Result"}
        sixes[num_hosts] = _joined([rank["dice"][1] for rank in ranks])
        assert _joined([rank["dice"][2] for rank in ranks]) == [10] * 8
    assert sixes[1] == sixes[2]
    assert len(set(sixes[1])) > 2, "each shard has a key of its own"


def test_gradients_through_padding_and_psum_are_those_of_the_whole(mores: dict[int, list[dict[str, Any]]]) -> None:
    for ranks in mores.values():
        for rank in ranks:
            assert rank["loss"][0] == pytest.approx(rank["loss"][1], rel=1e-5)
            for name in ("mapped", "jitted"):
                for ours, whole in zip(rank["gradients"][name], rank["gradients"]["whole"], strict=True):
                    np.testing.assert_allclose(ours, whole, rtol=2e-5, atol=1e-7)


def test_uneven_rows_come_back_without_padding(mores: dict[int, list[dict[str, Any]]]) -> None:
    for ranks in mores.values():
        for rank in ranks:
            assert rank["square"] == [[13, 3], 0.0] and rank["no width"] == [13, 0]


def test_kinds_and_meshes(mores: dict[int, list[dict[str, Any]]]) -> None:
    for ranks in mores.values():
        doubled, scaled, ones = (_joined([rank["thru"][number] for rank in ranks]) for number in range(3))
        assert doubled == [2.0 * n for n in range(8)] and scaled == [2.5 * n for n in range(8)]
        assert ones == [1.0 * n for n in range(8)], "True is not taken for the 1 of another call"
        assert _joined([rank["mixed"] for rank in ranks]) == [n + 3.0 for n in range(8)]
        assert _joined([rank["both"] for rank in ranks]) == list(range(8))
        assert _joined([rank["donated"][1] for rank in ranks]) == [n + 1.0 for n in range(8)]
        for rank in ranks:
            assert rank["donated"][0] is True
            assert rank["first"] == [28.0, True]
            assert rank["gathered"] == [[n] for n in range(8)]
            assert rank["inside"] < 1e-4
        assert _joined([rank["rows"] for rank in ranks]) == _joined([rank["rows"] for rank in mores[1]])


def test_what_hosts_hold_may_be_closed_over_under_jit() -> None:
    (one,), (first, second) = _run("at_hand", 1, 8), _run("at_hand", 2, 4)
    assert first["values"] == second["values"] == one["values"]
    assert one["values"]["numpy"] == one["values"]["device"] == [2.0 * (4 * n + 1) for n in range(8)]
    assert one["values"]["padded"] == [[4.0 * n, 4.0 * n + 2] for n in range(5)]
    for rank in (first, second):
        assert "arguments of <lambda> that every host should hold alike differ" in rank["differs"]
        assert rank["types"] == one["types"] == ["float32", "bfloat16", "False"], "a weak type is one on every layout"


def test_arguments_and_results_that_differ_are_told() -> None:
    first, second = _run("diverging", 2, 4)
    assert first == second
    batch, weight, result, damaged = (first[name] for name in ("batch", "weight", "result", "damaged"))
    assert "arguments of <lambda> that every host should hold alike differ, in 1 of 2 leaves" in batch["message"]
    assert "1: 1 x (" in batch["message"] and "first at [0]: 0x00000000 (0.0)" in batch["message"]
    assert "0: 1 x (" in weight["message"] and "spmd.broadcast gives all hosts one host's" in weight["message"]
    assert "results of <lambda> that should be equal on the 8 shards of axis 'i' differ" in result["message"]
    assert "sum: 7 x (" in result["message"] and "(2.0)" in result["message"]
    assert 'Reduce them by jax.lax.psum or pmean, or have all of them by out="stack"' in result["message"]
    for told in (batch, weight, result):
        assert (told["type"], told["cause"], told.get("suspects", [])) == ("ValueMismatchError", "refused", [])
        assert "culprit" not in told["message"]
    assert (damaged["type"], damaged["cause"]) == ("ReplicaDivergenceError", "diverged")
    assert [host[-8:] for host in damaged["suspects"]] == ["(rank 1)"], "JAX can prove these equal: a copy is wrong"
    assert "in 1 of 2 leaves:\n  w: 7 x (" in damaged["message"] and "(majority)" in damaged["message"]
    assert first["fine"] == {"result": 8.0}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rows", "argument 0, leaf x: 13 rows do not divide over the 8 shards of axis 'i'; leave out 5, or add 3, "),
        ("scalar", "argument 0: is 'shard', but a scalar has no leading axis to cut"),
        ("thru", "one entry for each of the 8 shards of axis 'i', it has 4"),
        ("key", "argument 0: is 'rng', but float32[2] is no single PRNG key"),
        ("keys", "key<fry>[2] is no single PRNG key"),
        ("kind", "no kind of argument is called 'broadcsat'; did you mean 'broadcast'?"),
        ("kinds", "TypeError: argtypes='shard': a sequence"),
        ("axis", "the mesh has no axis 'j'; its axes are i"),
        ("count", "TypeError: argtypes names 1 positional arguments, the call has 2"),
        ("keyword", "TypeError: kwargtypes has no kind for the keyword argument 'scale'"),
        ("static", "TypeError: a static argument must be hashable"),
        ("mask", "the function must take `mask`"),
        ("two batches", "argument 0 has 13 rows, argument 1 has 16: one mask cannot fit both"),
        ("no rows", "the function returns a scalar in (the tree itself), which has no rows"),
        ("donate", "donate=(1,): 1 is no argument that lies on devices"),
        ("out", "out='stacked'"),
        ("unproven", "that should be equal on the 8 shards of axis 'i' may differ in all: it varies over i. Under jit"),
        ("empty", "argument 0: there are no rows"),
        ("more rows", "the function gets 2 rows a shard and returns 3 in y, so which of them are padding"),
        ("more even rows", "the function gets 2 rows a shard and returns 3 in y"),
        ("own mask", "kwargtypes cannot have an argument of that name"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_words(refused: dict[str, str], name: str, words: str) -> None:
    assert words in refused[name]
