"""Whether a running job goes to other hosts at a commit, case by case; no Ray anywhere."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from launcher.moves import GROW_AFTER_S, Free, Move, Pace, Stay, decide_move

LONG = GROW_AFTER_S + 1.0
SETTLED = Free(for_s=LONG)


def at_commit(
    *, hosts: Sequence[str] = ("a", "b"), leaving: Collection[str] = (), free: Mapping[str, Free] | None = None,
    sizes: Sequence[int] = (3, 2, 1), **more: Any,
) -> Move | Stay:  # fmt: skip
    known: dict[str, Any] = {"pace": Pace(), "others_wait": False, "grown_s": None, **more}
    return decide_move(step=40, hosts=hosts, leaving=leaving, free=free or {}, sizes=sizes, **known)


def test_it_goes_on_where_nothing_is_better() -> None:
    assert at_commit() == Stay()
    assert at_commit(hosts=("a", "b", "c"), free={"d": SETTLED}) == Stay(), "it has all that it wants"


def test_it_grows_back_when_a_host_has_been_there_for_a_while() -> None:
    found = at_commit(free={"c": Free(for_s=LONG, is_back=True), "d": SETTLED})
    assert found == Move(hosts=("a", "b", "c"), why="grows back to 3 hosts at step 40: host c is back", grows=True)
    found = at_commit(hosts=("a",), free={"c": Free(for_s=LONG, is_back=True), "d": SETTLED})
    assert isinstance(found, Move) and found.why == "grows back to 3 hosts at step 40: hosts c, d are free"
    assert at_commit(free={"c": Free(for_s=GROW_AFTER_S / 2, is_back=True)}) == Stay()


def test_it_grows_by_whole_slices() -> None:
    free = {"c0": SETTLED, "c1": SETTLED, "d0": SETTLED}
    found = at_commit(hosts=("a0", "a1"), sizes=(6, 4, 2), free=free)
    assert isinstance(found, Move) and found.hosts == ("a0", "a1", "c0", "c1")


def test_a_queued_job_comes_first() -> None:
    found = at_commit(free={"c": SETTLED}, others_wait=True)
    assert found == Stay(what="does not grow back to 3 hosts", why="a job is queued that may need c first")


@pytest.mark.parametrize(
    ("pace", "grows"),
    [
        (Pace(), True),  # not known: what is certain is that hosts are idle
        (Pace(restart_s=3.0, left_s=9.1), True),  # a third of 9.1 s
        (Pace(restart_s=3.0, left_s=8.9), False),
        (Pace(restart_s=3.0, left_s=9.1, again_s=0.5), False),
        (Pace(restart_s=3.0), True),
    ],
)
def test_it_grows_where_that_can_save_more_than_a_restart_costs(pace: Pace, grows: bool) -> None:
    found = at_commit(free={"c": SETTLED}, pace=pace)
    assert isinstance(found, Move) == grows
    if isinstance(found, Stay):
        assert found.why.startswith("a restart costs 3") and "would save" in found.why


def test_hosts_that_come_and_go_cost_a_share_of_the_time_at_most() -> None:
    pace = Pace(restart_s=3.0, left_s=10_000.0)
    found = at_commit(free={"c": SETTLED}, pace=pace, grown_s=59.0)
    assert isinstance(found, Stay) and "it grew 59 s ago" in found.why and "5%" in found.why
    assert isinstance(at_commit(free={"c": SETTLED}, pace=pace, grown_s=61.0), Move)


def test_it_leaves_a_host_that_is_to_go_for_another() -> None:
    found = at_commit(hosts=("a", "b", "c"), leaving=("b",), free={"d": Free(for_s=0.0)}, others_wait=True)
    assert found == Move(hosts=("a", "c", "d"), why="leaves b at step 40, before it goes: with d in its place")


def test_it_leaves_a_host_that_is_to_go_for_fewer_where_that_is_allowed() -> None:
    found = at_commit(hosts=("a", "b", "c"), leaving=("b",))
    assert found == Move(hosts=("a", "c"), why="leaves b at step 40, before it goes: with 2 of 3 hosts")
    found = at_commit(hosts=("a", "b"), leaving=("a", "b"), free={"c": SETTLED})
    assert found == Move(hosts=("c",), why="leaves a, b at step 40, before it goes: with 1 of 3 hosts")


def test_else_it_stays_until_the_host_is_lost() -> None:
    found = at_commit(hosts=("a", "b"), leaving=("b",), sizes=(2,))
    assert found == Stay(what="stays on b until that is lost", why="it needs 2 host(s), 1 would be left")
    assert isinstance(at_commit(hosts=("a", "b"), leaving=("b",), pace=Pace(restart_s=3.0, left_s=2.0)), Stay)
