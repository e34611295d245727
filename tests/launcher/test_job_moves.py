"""What a job's moves do with what they hear: real records and pool, agents without Ray."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayError

import launcher.job_moves
from launcher.command import Command
from launcher.host_pool import HostPool
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.job_moves import JobMoves
from launcher.job_record import JobRecord
from launcher.notices import Notice
from tests.conftest import job_spec

pytestmark = pytest.mark.usefixtures("state_folder")

HOSTS = ["a", "b", "c"]
NOTICE = Notice(kind="preemption", word="TRUE", within_s=30.0)


class HostAgent:
    """The agent of a host: hears what its rank is told, after it has failed to so often."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.failures = 0
        self.alive = True
        self.tell = SimpleNamespace(remote=self._tell)
        self.clock = SimpleNamespace(remote=self._clock)

    async def _tell(self, attempt_id: str, message: dict[str, Any]) -> None:
        assert (attempt_id, message["type"]) == ("job.1", "save")
        self.failures -= 1
        if self.failures >= 0:
            raise RayError("the network is cut")
        self.heard.append(message["number"])

    async def _clock(self) -> float:
        if not self.alive:
            raise RayError("lost")
        return 0.0


class World:
    """A job that runs on some of three hosts."""

    def __init__(self, hosts: Sequence[str], name: str = "job", **options: Any):
        spec = dataclasses.replace(job_spec(name), **options)
        self.agents = {host: HostAgent() for host in HOSTS}
        self.pool = HostPool(self.agents)
        self.pool.take(name, hosts)
        self.record = JobRecord(spec, JobFolder.create(spec, "lab"), "storage")
        self.record.hosts = hosts
        self.record.state = JobState.RUNNING
        self.record.attempt = 1
        self.moves = JobMoves(self.record, self.pool, [3, 2])
        joined = asyncio.Event()
        joined.set()
        agents = [self.agents[host] for host in hosts]
        tasks = [SimpleNamespace(attempt_id="job.1")] * len(hosts)
        gang: Any = SimpleNamespace(agents=agents, tasks=tasks, joined=joined)
        self.moves.begin_attempt(gang)

    def notice(self, host: str, notice: Notice | None) -> None:
        self.pool.set_leaving(host, notice)
        self.moves.told(host, notice)

    async def commit(self, step: int) -> None:
        self.moves.hear(0, {"type": "report", "step": step, "total": 100})
        self.moves.hear(1, {"type": "checkpoint", "step": step})  # which only rank 0 tells of
        self.moves.hear(0, {"type": "checkpoint", "step": step})
        self.record.checkpoint_step = step
        async with asyncio.timeout(60.0):
            while self.moves._deciding:
                await asyncio.sleep(0.0)


def run(steps: Callable[[World], Any], hosts: Sequence[str] = HOSTS, **options: Any) -> World:
    async def go() -> World:
        world = World(hosts, **options)
        await steps(world)
        world.moves.end_attempt()
        world.record.close()
        return world

    return asyncio.run(go())


def test_a_notice_is_told_to_every_rank_in_order_until_it_has_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher.job_moves, "RETRY_S", 0.01)

    async def steps(world: World) -> None:
        world.agents["b"].failures = 3
        world.notice("c", NOTICE)
        world.notice("a", NOTICE)
        async with asyncio.timeout(60.0):
            while any(len(agent.heard) < 2 for agent in world.agents.values()):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # in which none hears more

    world = run(steps)
    assert [agent.heard for agent in world.agents.values()] == [[1, 2]] * 3
    assert world.record.notes == [
        f"host {host}: its cloud will end it within 30 s (preemption: TRUE); a checkpoint is saved now" for host in "ca"
    ]
    events = [event for event in world.record.folder.lines("events.jsonl") if event["type"] == "notice"]
    assert [(event["host"], event["notice"], event["word"]) for event in events] == [
        ("c", "preemption", "TRUE"), ("a", "preemption", "TRUE")
    ]  # fmt: skip
    assert all(event["deadline"] for event in events)


def test_at_the_commit_it_leaves_and_no_budget_is_touched() -> None:
    async def steps(world: World) -> None:
        world.notice("c", NOTICE)
        await world.commit(40)
        assert world.moves.due.is_set() and world.moves.go() == ["a", "b"]
        assert world.moves.go() is None, "it moves once"

    world = run(steps)
    assert world.record.notes[-1] == "leaves c at step 40, before it goes: with 2 of 3 hosts"
    assert world.record.ends == () and world.record.state is JobState.RECOVERING
    assert world.pool.held == dict.fromkeys("ab", "job")


def test_a_notice_that_is_taken_back_before_the_commit_changes_nothing() -> None:
    async def steps(world: World) -> None:
        world.notice("c", NOTICE)
        world.notice("c", None)
        await world.commit(40)

    world = run(steps)
    assert not world.moves.due.is_set()
    assert world.record.notes[-1] == "host c stays: its cloud has taken the notice back"


def test_hosts_that_do_not_answer_are_not_moved_to_and_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.moves.GROW_AFTER_S", 0.0)

    async def steps(world: World) -> None:
        world.agents["c"].alive = False
        await world.commit(40)
        assert not world.moves.due.is_set() and "c" not in world.pool.held
        world.agents["c"].alive = True
        await world.commit(50)
        assert world.pool.held["c"] == "job", "reserved before the attempt ends"
        assert world.moves.go() == HOSTS

    world = run(steps, hosts=["a", "b"])
    assert world.record.notes == ["grows back to 3 hosts at step 50: host c is free"]


def test_the_last_checkpoint_is_none_to_move_at() -> None:
    async def steps(world: World) -> None:
        world.notice("c", NOTICE)
        await world.commit(100)

    assert not run(steps).moves.due.is_set()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"command": Command(words=("true",))}, "a command has no checkpoint that could be asked for"),
        ({"checkpoint_every": 0}, "--checkpoint-every 0 saves at the end alone"),
    ],
)
def test_without_checkpoints_it_says_once_why_it_does_not_grow(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr("launcher.moves.GROW_AFTER_S", 0.0)

    async def steps(world: World) -> None:
        for _ in range(3):
            world.moves.look()

    assert run(steps, hosts=["a", "b"], **options).record.notes == [f"does not grow back to 3 hosts: {why}"]
    assert run(steps, hosts=["a", "b"], name="saves").record.notes == []


def test_a_command_is_asked_for_no_checkpoint() -> None:
    async def steps(world: World) -> None:
        world.notice("c", NOTICE)
        await asyncio.sleep(0.05)

    world = run(steps, command=Command(words=("true",)))
    assert not any(agent.heard for agent in world.agents.values())
    assert world.record.notes[0].endswith("a command has no checkpoint that could be asked for")
