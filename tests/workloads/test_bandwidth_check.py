"""The check of the links: what is measured, what counts as slow, and real collectives between real processes."""

import itertools

import numpy as np
import pytest

from tests.ranks import run_ranks
from workloads.bandwidth_check.plan import (
    ALL_GATHER,
    ALL_TO_ALL,
    BROADCAST,
    BUS_FACTORS,
    PSUM,
    Measurement,
    partner,
    predicted_s,
    rounds,
    shard_elements,
    size_of,
    sizes,
)
from workloads.bandwidth_check.report import Found, describe, judged_links
from workloads.bandwidth_check.slow import Link, find_slow
from workloads.bandwidth_check.values import PERIOD, expected, first_wrong, put_in


def link(us: float = 100, gb_per_s: float = 10, disturbed: float = 1) -> Link:
    """One whose median launch takes `disturbed` times as long as its fastest."""
    return Link(
        latency_s=us * 1e-6,
        bytes_per_s=gb_per_s * 1e9,
        usual_latency_s=us * 1e-6 * disturbed,
        usual_bytes_per_s=gb_per_s * 1e9 / disturbed,
    )


FAST, NARROW, FAR = link(), link(gb_per_s=4.9), link(us=201)


def measurement(collective: str = PSUM, num_bytes: int = 4, min_s: float = 1e-3, num_devices: int = 4) -> Measurement:
    return Measurement(
        collective=collective, num_devices=num_devices, num_bytes=num_bytes, repeats=3, min_s=min_s, median_s=min_s
    )


@pytest.mark.parametrize("num_hosts", [2, 3, 4, 5, 8, 33])
def test_every_pair_meets_once_and_nobody_is_in_two_pairs_of_a_round(num_hosts: int) -> None:
    plan = rounds(num_hosts)
    met = [pair for pairs in plan for pair in pairs]
    assert sorted(met) == list(itertools.combinations(range(num_hosts), 2))
    assert all(len({host for pair in pairs for host in pair}) == 2 * len(pairs) for pairs in plan)
    assert len(plan) == (num_hosts - 1 if num_hosts % 2 == 0 else num_hosts)
    for pairs in plan:
        assert [partner(pairs, host) for host in range(num_hosts)].count(None) == num_hosts % 2


def test_one_host_has_no_pair() -> None:
    assert [pair for pairs in rounds(1) for pair in pairs] == []


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    # 8 ranks, 1 GB in 10 ms: 100 GB/s by the algorithm.
    one_gb = {name: measurement(name, 10**9, 0.01, 8).bus_bytes_per_s / 1e9 for name in BUS_FACTORS}
    assert one_gb == pytest.approx({PSUM: 175, ALL_GATHER: 87.5, ALL_TO_ALL: 87.5, BROADCAST: 100})


@pytest.mark.parametrize("collective", BUS_FACTORS)
@pytest.mark.parametrize("num_bytes", [4, 1000, 2**20])
def test_a_buffer_has_the_size_asked_for_or_one_element_a_device(collective: str, num_bytes: int) -> None:
    for num_devices in (2, 3, 8):
        elements = shard_elements(collective, num_bytes, num_devices)
        size = size_of(collective, elements, num_devices)
        assert num_bytes <= size < num_bytes + 4 * num_devices
        assert len(expected(collective, 1, num_devices, elements)) * 4 == size


def test_the_sizes_end_with_the_largest_asked_for() -> None:
    assert sizes(4) == [4]
    assert sizes(5000) == [4, 1000, 5000]
    assert sizes(64_000_000) == [4, 1_000, 64_000, 1_000_000, 16_000_000, 64_000_000]


def test_a_longer_launch_is_foretold_from_the_two_before_it() -> None:
    small, large = measurement(num_bytes=1000, min_s=1e-3), measurement(num_bytes=3000, min_s=2e-3)
    assert predicted_s([], 4) == predicted_s([small], 1000) == 0.0
    assert predicted_s([small, large], 7000) == pytest.approx(4e-3)
    assert predicted_s([large, small], 10**9) >= 1e-3  # a larger size that was faster: the line does not fall


@pytest.mark.parametrize("links", [
    {},
    {(0, 1): NARROW},
    {(0, 1): FAST, (0, 2): FAST, (1, 2): FAST},
    dict.fromkeys(itertools.combinations(range(5), 2), FAR),
    # Exactly half the bandwidth, exactly twice the latency.
    {(0, 1): FAST, (0, 2): FAST, (1, 2): link(us=200, gb_per_s=5)},
])  # fmt: skip
def test_nothing_is_slow_where_all_are_alike_or_nothing_can_be_compared(links: dict[tuple[int, int], Link]) -> None:
    assert find_slow(links) == []


def test_where_launches_differ_more_than_links_nothing_is_slow_but_what_stands_out_of_that() -> None:
    disturbed = dict.fromkeys(itertools.combinations(range(3), 2), link(disturbed=3))
    assert find_slow(disturbed | {(1, 2): link(us=250, gb_per_s=4, disturbed=3)}) == []
    assert find_slow(disturbed | {(0, 1): link(us=250, disturbed=3), (1, 2): link(us=250, disturbed=3)}) == []
    (found,) = find_slow(disturbed | {(1, 2): link(us=350, gb_per_s=3, disturbed=3)})
    assert found.hosts == (1, 2)
    assert found.what == "3 GB/s where the median is 10 GB/s, and 350 us of latency where the median is 100 us"


@pytest.mark.parametrize("num_hosts", [3, 4, 7])
@pytest.mark.parametrize(("slow", "words"), [(NARROW, "4.9 GB/s where the median is 10 GB/s"),
                                             (FAR, "201 us of latency where the median is 100 us")])  # fmt: skip
def test_one_slow_link_is_named_and_no_host(num_hosts: int, slow: Link, words: str) -> None:
    links = dict.fromkeys(itertools.combinations(range(num_hosts), 2), FAST) | {(1, 2): slow}
    (found,) = find_slow(links)
    assert (found.hosts, found.what) == ((1, 2), words)


@pytest.mark.parametrize("num_hosts", [3, 4, 7])
def test_a_slow_host_is_named_once_though_most_links_of_three_hosts_are_its_own(num_hosts: int) -> None:
    links = {pair: NARROW if 1 in pair else FAST for pair in itertools.combinations(range(num_hosts), 2)}
    (found,) = find_slow(links)
    assert found.hosts == (1,)
    assert "4.9 GB/s where the median is 10 GB/s at best" in found.what


def test_links_are_compared_at_the_largest_size_that_all_have_measured() -> None:
    whole = [measurement(num_bytes=size, min_s=1e-3 + size / 1e9) for size in (4, 1024, 2**20)]
    slow = [measurement(num_bytes=size, min_s=1e-3 + size / 2e6) for size in (4, 1024)]
    everything = [
        Found(ranks=(0, 1), measurements=whole, left_out=[]),
        Found(ranks=(0, 2), measurements=whole, left_out=[]),
        Found(ranks=(1, 2), measurements=slow, left_out=[(PSUM, 2**20)]),
        Found(ranks=(0, 1, 2), measurements=whole, left_out=[]),
    ]
    assert judged_links(everything)[0, 1].bytes_per_s == whole[1].bus_bytes_per_s
    told = describe([Found.from_json(found.to_json()) for found in everything], ["a", "b", "c"])
    assert told["problems"] == []  # 1.5 ms and 1 ms, at the size that all have
    assert "1 of 4 groups had no time for all sizes" in " ".join(told["notes"])
    far = Found(ranks=(1, 2), measurements=[measurement(min_s=5e-3)], left_out=[])
    (problem,) = describe([*everything[:2], far, everything[3]], ["a", "b", "c"])["problems"]
    assert problem.startswith("the link between b and c: ")


def test_pairs_that_there_was_no_time_for_are_counted() -> None:
    none = Found(ranks=(0, 1), measurements=[], left_out=[])
    assert "no time for 3 of 3 pairs of hosts" in " ".join(describe([none], ["a", "b", "c"])["notes"])
    assert "no other to compare it with" in " ".join(describe([none], ["a", "b"])["notes"])


@pytest.mark.parametrize("collective", BUS_FACTORS)
def test_a_wrong_value_is_found_with_the_device_that_it_came_from(collective: str) -> None:
    elements = 3 * PERIOD
    right = expected(collective, 1, 3, elements)
    assert first_wrong(collective, 1, 3, elements, right) is None
    wrong = right.copy()
    wrong[-2] += 1
    found = first_wrong(collective, 1, 3, elements, wrong)
    assert found is not None
    assert (found.index, found.got - found.wanted) == (len(right) - 2, 1)
    assert found.source == {PSUM: None, ALL_GATHER: 2, ALL_TO_ALL: 2, BROADCAST: 0}[collective]


def test_no_device_puts_in_what_another_does() -> None:
    parts = [put_in(device, 64).tobytes() for device in range(PERIOD)]
    assert len(set(parts)) == PERIOD
    assert np.array_equal(put_in(5, 10, start=7), put_in(5, 17)[7:])


def test_two_hosts_are_measured_and_agree() -> None:
    one, other = run_ranks(
        "tests.workloads.bandwidth_programs:check", num_hosts=2, devices_per_host=2,
        config={"max_bytes": 1024, "seconds": 300},
    )  # fmt: skip
    assert one == other
    groups = one["diagnostics"]["groups"]
    assert [group["hosts"] for group in groups] == [["host-0"], ["host-1"], ["host-0", "host-1"]]
    for group in groups:
        assert {(m["collective"], m["num_bytes"] > 32) for m in group["measurements"]} == set(
            itertools.product(BUS_FACTORS, (False, True))
        )
        assert all(0 < m["min_s"] <= m["median_s"] and m["repeats"] >= 1 for m in group["measurements"])
    assert one["diagnostics"]["problems"] == []
    assert one["metrics"]["psum_bus_bytes_per_s"] > 0


def test_a_host_that_sends_wrong_values_is_named_by_all_that_get_them() -> None:
    for rank, said in enumerate(
        run_ranks("tests.workloads.bandwidth_programs:gather_from_a_wrong_host", num_hosts=2, devices_per_host=1)
    ):
        assert "all-gather of 256 bytes over host-0, host-1" in said
        assert f"device {rank} on host-{rank} has 4 at element 3, expected 3, from device 0 on host-0" in said
