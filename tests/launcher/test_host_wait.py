"""An agent is waited for as long as it answers. Agents without Ray."""

import asyncio
import errno
import time
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from launcher.agent_handles import GoneAgent
from launcher.host_wait import HostError, while_it_answers
from tests.launcher.in_process import InProcess


class Agent:
    """Works for so long, and answers until so many seconds have passed; a cut of the network is over after as many."""

    def __init__(
        self, work_s: float, *, stands_from_s: float = 99.0, cut_s: float = 0.0, error: Exception | None = None
    ):
        self._began = time.monotonic()
        self._work_s = work_s
        self._stands_from_s = stands_from_s
        self._cut_s = cut_s
        self._error = error

    async def clock(self) -> float:
        age_s = time.monotonic() - self._began
        if age_s >= self._stands_from_s:
            await asyncio.Event().wait()
        if age_s < self._cut_s:
            raise ActorUnavailableError("the network is cut", None)
        return 0.0

    async def work(self) -> str:
        await asyncio.sleep(self._work_s)
        if self._error is not None:
            raise self._error
        return "done"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.host_wait.SILENT_S", 0.3)
    monkeypatch.setattr("launcher.host_wait.LOOK_PERIOD_S", 0.05)


def wait(actor: Any) -> str:
    async def program() -> str:
        agent = actor if isinstance(actor, GoneAgent) else InProcess(actor)
        return await asyncio.wait_for(while_it_answers("lab-1", agent, agent.work.remote()), 30.0)

    return asyncio.run(program())


def test_one_that_answers_may_take_its_time_and_a_short_cut_is_survived() -> None:
    assert wait(Agent(0.0)) == "done"
    assert wait(Agent(1.0)) == "done"
    assert wait(Agent(1.0, cut_s=0.2)) == "done"


def test_one_that_stands_still_is_lost_also_in_the_middle() -> None:
    for stands_from_s in (0.0, 0.5):
        with pytest.raises(HostError, match=r"^host lab-1 was lost: its agent has not answered for 0\.3 s$") as raised:
            wait(Agent(600.0, stands_from_s=stands_from_s))
        assert raised.value.lost


def test_what_it_cannot_do_is_not_a_loss() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(HostError, match=r"^host lab-1: OSError: .*No space left on device") as raised:
        wait(Agent(0.0, error=full))
    assert not raised.value.lost


def test_one_that_is_gone_is_lost() -> None:
    with pytest.raises(HostError, match=rf"^host lab-1 was lost \({ActorDiedError.__name__}\)$") as raised:
        wait(GoneAgent())
    assert raised.value.lost


def test_what_is_waited_for_is_given_up_with_the_wait() -> None:
    cancelled = []

    async def program() -> None:
        async def ask() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(True)

        waiting = asyncio.ensure_future(while_it_answers("lab-1", InProcess(Agent(0.0)), ask()))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(program())
    assert cancelled == [True]
