"""The agent's starts and stops of ranks: processes are real, Ray is not there."""

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher import agent as agents
from launcher.agent import Agent
from launcher.attempt import RankTask
from launcher.certificates import Authority
from launcher.command import FOLDER, Command
from launcher.command_process import start_command
from launcher.user_folder import NAME, pack_folder
from tests.conftest import ROOT
from tests.launcher.test_host_attempt import TASK

SLEEPS = Command(words=["sleep", "600"])


@contextlib.asynccontextmanager
async def agent_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    """An agent with an empty user's folder on its disk; all that it has started is ended."""
    monkeypatch.setattr(agents, "end_with_raylet", lambda *_: None)  # there is none
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    agent = Agent("h0", str(folder / "host"), "cpu", 1, {}, "digest", owns_ray=False)
    (folder / "project").mkdir()
    await agent.put_file("d", NAME, pack_folder(folder / "project"))
    (folder / "host" / "code" / "digest").symlink_to(ROOT)
    try:
        yield agent
    finally:
        agent._kill_ranks()
        for attempt in agent.attempts.values():
            await attempt.ended.wait()
        agent.notices.close()


async def task_of(agent: Agent, folder: Path, number: int) -> RankTask:
    attempt_id = f"job.{number}.x"
    request = await agent.certificate_request(attempt_id)
    certificate = Authority.open(folder, "laptop-1").issue(request, attempt_id, 0)
    return dataclasses.replace(TASK, attempt_id=attempt_id, attempt=number, command=SLEEPS, files={FOLDER: ("d", NAME)},
                               certificate=certificate)  # fmt: skip


def run(program: Any) -> None:
    asyncio.run(asyncio.wait_for(program, 60.0))


@dataclasses.dataclass
class SlowStart:
    """Starts of commands that take as long as the test wants."""

    begun: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    goes_on: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    pids: list[int] = dataclasses.field(default_factory=list)

    async def __call__(self, *args: Any, **named: Any) -> Any:
        self.begun.set()
        await self.goes_on.wait()
        process, speaks = await start_command(*args, **named)
        self.pids.append(process.pid)
        return process, speaks


def test_a_stop_during_a_start_ends_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def program() -> None:
        slow = SlowStart()
        monkeypatch.setattr(agents, "start_command", slow)
        async with agent_in(tmp_path, monkeypatch) as agent:
            task = await task_of(agent, tmp_path, 1)
            starting = asyncio.ensure_future(agent.start(task))
            await slow.begun.wait()
            stopping = asyncio.ensure_future(agent.stop(task.attempt_id))
            await asyncio.sleep(0.1)
            assert not stopping.done(), "it says that nothing is left"
            slow.goes_on.set()
            await stopping
            assert not psutil.pid_exists(slow.pids[0])
            with pytest.raises(RuntimeError, match="was stopped while its rank started on h0"):
                await starting
            assert not agent.attempts and not (tmp_path / "host" / "attempts" / task.attempt_id).exists()

    run(program())


def test_an_agent_that_was_restarted_does_not_say_that_a_rank_launched_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        async with agent_in(tmp_path, monkeypatch) as agent:
            with pytest.raises(KeyError):
                await agent.launches("job.1.x")

    run(program())


def test_a_start_that_comes_after_its_stop_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def program() -> None:
        async with agent_in(tmp_path, monkeypatch) as agent:
            task = await task_of(agent, tmp_path, 1)
            await agent.stop(task.attempt_id)
            with pytest.raises(RuntimeError, match="was stopped"):
                await agent.start(task)
            assert not agent._busy()

    run(program())


def test_a_start_that_is_slow_runs_not_beside_the_next_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        slow = SlowStart()
        monkeypatch.setattr(agents, "start_command", slow)
        async with agent_in(tmp_path, monkeypatch) as agent:
            starting = asyncio.ensure_future(agent.start(await task_of(agent, tmp_path, 1)))
            await slow.begun.wait()
            monkeypatch.setattr(agents, "start_command", start_command)
            pid = await agent.start(await task_of(agent, tmp_path, 2))
            slow.goes_on.set()
            with pytest.raises(RuntimeError, match=r"job\.1\.x was stopped"):
                await starting
            assert psutil.pid_exists(pid) and not psutil.pid_exists(slow.pids[0])

    run(program())


def test_the_rank_of_an_earlier_attempt_is_gone_before_the_next_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        async with agent_in(tmp_path, monkeypatch) as agent:
            first = await agent.start(await task_of(agent, tmp_path, 1))
            there: list[bool] = []

            async def look_and_start(*args: Any, **named: Any) -> Any:
                there.append(psutil.pid_exists(first))
                return await start_command(*args, **named)

            monkeypatch.setattr(agents, "start_command", look_and_start)
            await agent.start(await task_of(agent, tmp_path, 2))
            assert there == [False]

    run(program())


def test_an_earlier_rank_that_does_not_die_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        monkeypatch.setattr(agents, "EARLIER_ENDS_S", 0.2)
        async with agent_in(tmp_path, monkeypatch) as agent:
            first = await agent.start(await task_of(agent, tmp_path, 1))
            process = agent.attempts["job.1.x"].process
            monkeypatch.setattr(process, "kill", lambda: None)  # it waits for a disk, and the kernel keeps it
            await agent.start(await task_of(agent, tmp_path, 2))
            os.kill(first, signal.SIGKILL)

    run(program())


def test_files_that_were_not_fetched_outlive_the_attempt_and_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        async with agent_in(tmp_path, monkeypatch) as agent:
            leaves = Command(words=["bash", "-c", "cd $SPMD_LAUNCH_JOB_DIR; echo a > a; echo b > b"])
            for number in (1, 2):
                task = dataclasses.replace(await task_of(agent, tmp_path, number), command=leaves)
                await agent.start(task)
                await agent.attempts[task.attempt_id].ended.wait()
                assert (await agent.collect(task.attempt_id)).files == {"results/a": 2, "results/b": 2}
            place = Path(await agent.keep_output("job.1.x", ["results/a"]))
            (tmp_path / "host" / "left" / "job.2.x" / "results").mkdir(parents=True)  # it cannot be moved there
            with pytest.raises(OSError, match="not empty"):
                await agent.keep_output("job.2.x", ["results/a"])
            for number in (1, 2):
                await agent.forget(f"job.{number}.x")
            assert [path.name for path in (tmp_path / "host" / "attempts").iterdir()] == ["job.2.x"]
            assert (tmp_path / "host" / "attempts" / "job.2.x" / "output" / "results" / "b").read_text() == "b\n"
        Agent("h0", str(tmp_path / "host"), "cpu", 1, {}, "digest", owns_ray=False).notices.close()
        assert [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()] == ["results/b"]

    run(program())
