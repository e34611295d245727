"""First come, first served: who gets which hosts."""

import pytest

from launcher.job_queue import Waiting, next_to_start, num_hosts_to_ask

HOSTS = ["h0", "h1", "h2", "h3"]
EACH = [(host,) for host in HOSTS]
SLICES = [("a0", "a1"), ("b0", "b1"), ("c0", "c1")]


@pytest.mark.parametrize(
    ("queue", "held", "decision"),
    [
        ([], {}, None),
        ([("a", 4)], {}, ("a", HOSTS)),
        ([("a", 2)], {}, ("a", ["h0", "h1"])),
        ([("a", 2)], {"h0": "x", "h2": "x"}, ("a", ["h1", "h3"])),  # in the order of ranks, whatever is free
        ([("a", 2)], {"h0": "x", "h1": "x", "h2": "x"}, None),
        ([("a", 4), ("b", 1)], {"h0": "x"}, None),  # b does not pass a, or a would starve
        ([("a", 1), ("b", 4)], {"h3": "x"}, ("a", ["h0"])),
        ([("a", 5)], {}, None),
        ([("a", 1)], {"gone": "x"}, ("a", ["h0"])),  # a host that is not alive any more holds nobody up
    ],
)
def test_decisions(queue: list[tuple[str, int]], held: dict[str, str], decision: tuple[str, list[str]] | None) -> None:
    assert next_to_start([Waiting(*job) for job in queue], EACH, held) == decision


@pytest.mark.parametrize(
    ("num_hosts", "held", "hosts"),
    [
        (2, {}, ["a0", "a1"]),
        (4, {}, ["a0", "a1", "b0", "b1"]),
        (2, {"a1": "x"}, ["b0", "b1"]),  # of a slice whose second host is held, the first is not given out either
        (4, {"b0": "x"}, ["a0", "a1", "c0", "c1"]),
        (4, {"a1": "x", "b0": "x"}, None),
        (3, {}, None),  # no part of a slice
    ],
)
def test_a_job_gets_whole_slices_or_waits(num_hosts: int, held: dict[str, str], hosts: list[str] | None) -> None:
    decision = next_to_start([Waiting("job", num_hosts)], SLICES, held)
    assert decision == (None if hosts is None else ("job", hosts))


def test_every_job_gets_its_turn_in_order() -> None:
    queue = [Waiting("a", 3), Waiting("b", 2), Waiting("c", 1), Waiting("d", 4)]
    held: dict[str, str] = {}
    started = []
    while queue:
        decision = next_to_start(queue, EACH, held)
        if decision is None:
            oldest = next(iter(held.values()))
            held = {host: job for host, job in held.items() if job != oldest}
            continue
        name, hosts = decision
        assert not set(hosts) & set(held)
        held |= dict.fromkeys(hosts, name)
        started.append(name)
        queue.pop(0)
    assert started == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("sizes", "num_alive", "asks"),
    [
        ([3], 3, 3),
        ([3, 1, 2], 3, 3),
        ([3, 1, 2], 5, 3),  # spares
        ([3, 1, 2], 2, 2),  # a host is lost, and it may do with two
        ([3, 1], 2, 1),  # its batch does not fit two
        ([3, 2], 1, 3),  # it waits
        ([3], 2, 3),
    ],
)
def test_a_job_asks_for_no_more_than_are_alive_where_it_may_do_with_fewer(
    sizes: list[int], num_alive: int, asks: int
) -> None:
    assert num_hosts_to_ask(sizes, num_alive) == asks
