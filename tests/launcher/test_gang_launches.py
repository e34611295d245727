"""What is made of the last launches of a command's ranks, and of agents that do not tell them. Agents without Ray."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from launcher.attempt import HostNews
from launcher.command import Command
from launcher.gang_launches import GangLaunches
from tests.launcher.in_process import InProcess
from tests.launcher.test_host_attempt import TASK
from workloads.agreement.launches import LaunchLog
from workloads.exchange import Exchange

WATCHED = dataclasses.replace(TASK, num_ranks=2, command=Command(words=["python", "train.py"]), watch_launches=True)


def launched(times: int) -> dict[str, Any]:
    log = LaunchLog(Exchange(0, 1))
    for _ in range(times):
        log.record("train")
    found = log.snapshot()
    return {"launches": found.count, "launch_hash": found.digest, "tail": [list(run) for run in found.runs]}


class BlackBoxAgent:
    """The agent of a rank that has ended.

    Args:
        times: it has launched its program.
        late_s: seconds until the agent tells.
    """

    def __init__(self, times: int, late_s: float = 0.0):
        self._times = times
        self._late_s = late_s

    async def launches(self, attempt_id: str) -> dict[str, Any]:
        await asyncio.sleep(self._late_s)
        return launched(self._times)


def at_end(agents: Sequence[BlackBoxAgent], heard: Sequence[int], timeout_s: float) -> tuple[str, str]:
    """Of ranks that have last told, while they ran, of so many launches."""

    async def program() -> tuple[str, str]:
        found = GangLaunches(["a", "b"], [InProcess(agent) for agent in agents], [WATCHED, WATCHED])
        for rank, times in enumerate(heard):
            assert found.hear(rank, HostNews(progress={**launched(times), "reports": 0})) == ""
        return await found.at_end(timeout_s)

    return asyncio.run(program())


@pytest.mark.parametrize(("times", "difference"), [(102, ""), (100, "launches until the end: rank 0 102, rank 1 100")])
def test_the_last_launches_are_waited_for_and_compared(times: int, difference: str) -> None:
    agents = [BlackBoxAgent(102), BlackBoxAgent(times, late_s=0.5)]
    assert at_end(agents, heard=[102, 100], timeout_s=30.0) == (difference, "")


def test_an_agent_that_does_not_answer_is_named_and_its_rank_is_not_called_different() -> None:
    agents = [BlackBoxAgent(102), BlackBoxAgent(102, late_s=600.0)]
    difference, unknown = at_end(agents, heard=[102, 100], timeout_s=0.3)
    assert difference == ""
    assert unknown.startswith("--watch-launches: the last launches of rank 1 on host b could not be had within 0.3 s")
