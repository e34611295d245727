"""Which hosts a job gets, and in which order its ranks are on them."""

import asyncio
from pathlib import Path

import pytest
from ray.exceptions import RayError

from launcher.agent_handles import GoneAgent
from launcher.host_pool import HostPool
from launcher.notices import Notice
from launcher.recovery import AttemptEnd, Cause, Policy, Retry, decide


def test_a_suspect_is_given_out_last_and_ranks_keep_the_order_of_hosts() -> None:
    pool = HostPool(dict.fromkeys(["lab-0", "lab-1", "lab-2"]))
    pool.suspects = {"lab-0": "a vote of copies"}
    assert pool.order() == [("lab-1",), ("lab-2",), ("lab-0",)]
    assert pool.in_rank_order(["lab-2", "lab-0", "lab-1"]) == ["lab-0", "lab-1", "lab-2"]
    assert pool.with_units(["lab-2"]) == ("lab-2",)


def test_what_a_vote_has_named_is_remembered_by_the_next_supervisor(tmp_path: Path) -> None:
    memory, hosts = tmp_path / "suspects.json", dict.fromkeys(["lab-0", "lab-1"])
    pool = HostPool(hosts, memory=memory)
    pool.suspect([], "nobody")
    assert not memory.exists() and pool.suspects == {}
    pool.suspect(["lab-0"], "job a: copies differ")
    following = HostPool(hosts, memory=memory)
    assert following.suspects == {"lab-0": "job a: copies differ"}
    assert following.order() == [("lab-1",), ("lab-0",)] and following.free().keys() == {"lab-1"}
    memory.write_text('{"lab-0"')
    assert HostPool(hosts, memory=memory).suspects == {}


class Told:
    """An actor's method that is not waited for."""

    def __init__(self) -> None:
        self.times = 0

    def remote(self) -> None:
        self.times += 1


class Answering:
    """The agent of a host that answers, or of one that is lost."""

    def __init__(self, answers: bool):
        self.fill_standby = Told()
        self.answers = answers
        self.clock = self

    async def remote(self) -> float:
        if not self.answers:
            raise RayError("lost")
        return 0.0


SLICES = [("a0", "a1"), ("b0", "b1"), ("c0", "c1")]


def pool_of_slices(*lost: str) -> HostPool:
    agents = {host: Answering(host not in lost) for host in ("b1", "a1", "c0", "a0", "b0", "c1")}
    return HostPool(agents, SLICES)


def test_ranks_are_counted_by_slice_and_worker_whatever_the_order_of_the_file() -> None:
    pool = pool_of_slices()
    assert pool.order() == SLICES
    assert pool.in_rank_order(["b1", "a1", "a0", "b0"]) == ["a0", "a1", "b0", "b1"]


def test_a_slice_that_has_lost_a_host_is_not_given_out() -> None:
    pool = pool_of_slices("a1")
    assert asyncio.run(pool.available("job", (), 0.0)) == ["b0", "b1", "c0", "c1"]
    assert pool.lost == {"a1"}
    assert pool.order() == SLICES[1:]


def test_a_suspect_is_suspected_with_its_slice() -> None:
    pool = pool_of_slices()
    pool.suspects = {"a1": "a vote of copies"}
    assert pool.order() == [SLICES[1], SLICES[2], SLICES[0]]
    assert pool.with_units(["a1", "c0"]) == ("a0", "a1", "c0", "c1")


def test_a_host_that_is_back_is_given_out_again() -> None:
    agents = {"lab-0": Answering(True), "lab-1": Answering(False)}
    pool = HostPool(agents)
    assert asyncio.run(pool.available("job", [], 0.0)) == ["lab-0"]
    assert not asyncio.run(pool.look_for_lost()) and pool.order() == [("lab-0",)]
    agents["lab-1"].answers = True
    assert asyncio.run(pool.look_for_lost()) and pool.order() == [("lab-0",), ("lab-1",)]
    assert [agent.fill_standby.times for agent in agents.values()] == [0, 1]  # its imports for the next job


@pytest.mark.parametrize(
    ("lost", "suspects", "sizes", "hosts"),
    [
        (("a1",), (), [4, 2], ("b0", "b1", "c0", "c1")),  # the spare slice stands in for the broken one
        (("a1", "c0"), (), [4, 2], ("b0", "b1")),  # shrunk by a slice, never to three hosts
        ((), ("a1",), [4, 2], ("b0", "b1", "c0", "c1")),  # a suspect is left out with its slice
        (("a0", "b0"), (), [4, 2], ("c0", "c1")),
    ],
)
def test_recovery_goes_on_with_whole_slices(
    lost: tuple[str, ...], suspects: tuple[str, ...], sizes: list[int], hosts: tuple[str, ...]
) -> None:
    pool = pool_of_slices(*lost)
    available = asyncio.run(pool.available("job", (), 0.0))
    ends = [AttemptEnd(cause=Cause.DIVERGED, suspects=pool.with_units(suspects))]
    decision = decide(ends, policy=Policy(), hosts=["a0", "a1", "b0", "b1"], available=available, sizes=sizes)
    assert isinstance(decision, Retry) and decision.hosts == hosts


NOTICE = Notice(kind="maintenance", word="TERMINATE")


def test_a_host_that_is_to_go_is_given_to_no_job_nor_is_its_slice() -> None:
    pool = pool_of_slices()
    pool.set_leaving("a1", NOTICE)
    assert pool.order() == SLICES[1:] and pool.with_units(pool.leaving) == SLICES[0]
    assert set(pool.free()) == {"b0", "b1", "c0", "c1"}
    pool.set_leaving("a1", None)
    assert pool.order() == SLICES


def test_hosts_are_free_since_they_were_first_seen_so_and_by_whole_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("launcher.host_pool.time.monotonic", lambda: now[0])
    pool = pool_of_slices()
    pool.take("job", ["a0", "a1"])
    pool.suspects = {"c0": "a vote of copies"}
    pool.lost = {"b1"}
    assert pool.free() == {}, "one slice is held, of the others a host is lost or suspect"
    now[0], pool.lost = 101.0, {"b0"}
    pool.look()
    now[0], pool.lost = 103.0, set()
    pool.look()
    now[0] = 110.0
    assert pool.free() == {"b0": 7.0, "b1": 7.0}
    pool.take("other", ["b0", "b1"])
    pool.look()
    pool.release("other")
    assert pool.free() == {"b0": 0.0, "b1": 0.0}


@pytest.mark.parametrize(("waiting", "could"), [(0, False), (2, True), (4, True), (6, False)])
def test_whether_a_queued_job_could_start_before_this_one_ends(waiting: int, could: bool) -> None:
    pool = pool_of_slices()
    pool.take("job", ["a0", "a1"])
    pool.take("other", ["b0", "b1"])  # which may end first
    pool.waiting = waiting
    assert pool.others_could_start("job") is could


def test_hosts_answer_or_do_not() -> None:
    pool = pool_of_slices("a1")
    assert asyncio.run(pool.all_answer(["b0", "b1"])) and not asyncio.run(pool.all_answer(["a1", "b0"]))


def test_a_host_that_was_given_away_while_a_lost_one_was_waited_for_is_nobody_elses() -> None:
    pool = HostPool({"lab-0": Answering(True), "lab-1": Answering(False), "lab-2": Answering(True)})
    pool.take("job", ["lab-0", "lab-1"])

    async def program() -> list[str]:
        asked = asyncio.ensure_future(pool.available("job", ["lab-1"], 0.5))
        await asyncio.sleep(0.1)
        pool.take("other", ["lab-2"])
        return await asked

    assert asyncio.run(program()) == ["lab-0"]
    assert pool.lost == {"lab-1"}


def test_an_agent_that_is_gone_for_ever_counts_as_lost() -> None:
    pool = HostPool({"lab-0": Answering(True), "lab-1": GoneAgent()})

    async def program() -> list[str]:
        pool.agents["lab-1"].fill_standby.remote()  # nobody waits for the answer
        return await pool.available("job", [], 0.0)

    assert asyncio.run(program()) == ["lab-0"] and pool.lost == {"lab-1"}
