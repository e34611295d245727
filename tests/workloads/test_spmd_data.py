"""`shard`, `broadcast`, `gather`, `unshard`, `assert_replicas_equal` on one host and on several."""

from typing import Any

import pytest

from tests.ranks import run_ranks

LAYOUTS = [(1, 8), (2, 4), pytest.param(4, 2, marks=pytest.mark.slow)]


def _run(name: str, num_hosts: int, devices_per_host: int) -> list[dict[str, Any]]:
    target = f"tests.workloads.spmd_data_programs:{name}"
    return run_ranks(target, num_hosts=num_hosts, devices_per_host=devices_per_host)


@pytest.mark.parametrize(("num_hosts", "devices"), LAYOUTS)
def test_every_dtype_comes_back_bit_for_bit(num_hosts: int, devices: int) -> None:
    first, *others = _run("round_trip", num_hosts, devices)
    assert len(first["expected"]) == 57
    for name in ("all", "tiny", "rank0", "again"):
        assert first[name] == first["expected"], name
    assert first["driver"] == first["plain"] and first["writable"]
    for rank in others:
        assert rank["all"] == rank["tiny"] == first["expected"]
        assert rank["rank0"] is rank["again"] is rank["driver"] is None


def test_hosts_bring_their_parts_and_mistakes_are_told_in_words() -> None:
    for rank in _run("hosts_parts", 2, 4):
        assert rank["same"] == [True] * 5
        for name, words in {
            "parts": "x: parts of the hosts must be equal in shape and dtype, they are float32[8, 2] on rank 0, ",
            "data": "data that every host should hold alike differ, in 1 of 1 leaves:\n  p/w: 1 x (",
            "uneven": "x: axis 0 of shape [13, 2] does not divide over 8 pieces (i)",
            "axes": "(None, 'i') names 2 axes, the leaf has shape [8]",
            "dtype": "hosts hold different trees: b: int8[rows] on rank 0, b: float32[rows] on rank 1",
            "trailing": "(the tree itself): float64[rows, 3] on rank 0, (the tree itself): float64[rows, 4] on rank 1",
            "leaves": "no further leaf on rank 0, 1: int64[rows] on rank 1",
            "to": "to='rank1': rank0, all and driver are known",
            "object": "TypeError: cannot gather f: object is neither an array nor a number",
            "broadcast": "trees of the hosts must be alike; w is float64[2] on rank 0, float64[3] on rank 1",
            "copies": "parts of which several hosts hold copies differ, in 1 of 1 leaves:\n  w: 4 x (",
            "partly": "parts of which several hosts hold copies differ, in 1 of 1 leaves:\n  w[0:4]: 2 x (",
            "bytes": "trees of the hosts must be alike; w is bytes of 2 bytes on rank 0, bytes of 3 bytes on rank 1",
            "root": "root=9: ranks are 0 to 1",
            "global": "x is one array over several hosts already",
        }.items():  # fmt: skip
            assert words in rank["messages"][name], name


@pytest.mark.parametrize(("num_hosts", "devices"), LAYOUTS)
def test_the_roots_bits_arrive_everywhere(num_hosts: int, devices: int) -> None:
    for rank in _run("broadcast", num_hosts, devices):
        assert rank["got"] == rank["expected"]
        assert rank["kinds"] == ["float", "int", "bool", "float64"]
        assert rank["count"] == 2**40 + num_hosts - 1
        assert rank["text"] == [True, True]


def test_unshard_gives_every_shard_in_order_on_every_layout() -> None:
    rates = []
    for num_hosts, devices in [(1, 8), (2, 4)]:
        for rank in _run("dice", num_hosts, devices):
            assert rank["classes"] == ["Result"]
            assert rank["keys"] == [True] * 8
            assert rank["processes"] == [0.5 + number for number in range(num_hosts)]
            assert "b is a scalar" in rank["messages"]["scalar"]
            assert "a has 8 entries, b has 4" in rank["messages"]["lengths"]
            assert "no leaves" in rank["messages"]["empty"]
            rates.append(rank["six_rates"])
    assert len(rates[0]) == 8 and len(set(rates[0])) > 2
    assert rates[0] == rates[1] == rates[2]


@pytest.mark.parametrize(("num_hosts", "devices"), [(1, 8), (2, 4)])
def test_a_flipped_bit_is_told_with_its_place(num_hosts: int, devices: int) -> None:
    for rank in _run("integrity", num_hosts, devices):
        assert rank["clean"] == ["ok", 12 * 4 + 8]
        assert rank["status"] == "diverged"
        assert len(rank["culprits"]) == 1
        assert (rank["index"], rank["bits"]) == ([3, 2], [24])
        assert "at step 4, in 1 of 2 leaves" in rank["message"] and "w: 7 x (" in rank["message"]


def test_a_gathers_turn_is_waited_for_as_long_as_rank_0_gets_on() -> None:
    first, *others = _run("slow_turns", 3, 1)
    assert first["sum"] == 2 * 16384 + 2 * 64 and [rank["sum"] for rank in others] == [None, None]
    assert first["seconds"] > 6.0, "longer than the time for which nothing may move"


@pytest.mark.parametrize(("num_hosts", "devices"), [(1, 8), (2, 4)])
def test_dtypes_of_a_byte_and_less_are_as_good_as_others(num_hosts: int, devices: int) -> None:
    for rank in _run("narrow", num_hosts, devices):
        for name, (gathered, unsharded, statuses, differences) in rank["found"].items():
            assert gathered and unsharded, name
            assert statuses == [26, "diverged"], name
            assert differences == [[[1, 1], ["3", "1"]]], name
        assert rank["empty"] == ["nothing-checked", 8]


def test_a_gather_needs_little_more_than_its_result() -> None:
    slack_mib, chunk_mib, host_mib = 6, 4, 64
    first, second = _run("memory", 2, 1)
    assert second["rank0"] < chunk_mib + slack_mib, "who gets nothing holds nothing"
    assert first["rank0"] < 2 * host_mib + chunk_mib + slack_mib
    for rank in (first, second):
        assert rank["all"] < 2 * host_mib + chunk_mib + slack_mib
