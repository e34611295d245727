"""What the ranks of one attempt have launched, asked of their agents and compared out of band."""

import asyncio
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError

from launcher.attempt import HostNews, RankTask
from launcher.launch_ledger import LaunchLedger

FAILED_TIMEOUT_S = 3.0  # where an attempt has failed, whoever follows it waits
END_TIMEOUT_S = 60.0  # where all ranks have ended well: a host may be busy, and what was compared is a promise


class GangLaunches:
    """Feeds a `LaunchLedger`; each method returns the first difference that is known, in words, or ''.

    Args:
        hosts: names, in the order of ranks.
        agents: Ray handles of those hosts' agents.
        tasks: one a rank.
    """

    def __init__(self, hosts: Sequence[str], agents: Sequence[Any], tasks: Sequence[RankTask]):
        self._hosts = hosts
        self._agents = agents
        self._tasks = tasks
        self._ledger = LaunchLedger(len(hosts))

    def hear(self, rank: int, news: HostNews) -> str:
        """Works while the ranks hang in collectives that do not belong together."""
        for event in news.events:
            if event["type"] == "report":
                self._ledger.hear_report(rank, event)
        if news.progress is not None and "tail" in news.progress:
            latest = news.progress
            self._ledger.hear(rank, latest["launches"], latest["launch_hash"], latest["tail"])
            self._ledger.hear_progress(rank, latest["reports"], latest["launches"])
        return self._ledger.difference

    async def when_failed(self) -> str:
        """Collectives that do not belong together crash before a rank can tell."""
        await self._hear_last(FAILED_TIMEOUT_S)
        return self._ledger.difference

    async def at_end(self, timeout_s: float = END_TIMEOUT_S) -> tuple[str, str]:
        """All ranks have ended well, and of a command's nobody has compared the launches, if they were to be watched.

        Returns:
            The difference; and what to tell where the ends of some are not known, who may not be called different.
        """
        task = self._tasks[0]
        if task.command is None or not task.watch_launches:
            return "", ""
        silent = await self._hear_last(timeout_s)
        difference = self._ledger.close(silent)
        if difference or not silent:
            return difference, ""
        listed = ", ".join(f"rank {rank} on host {self._hosts[rank]}" for rank in silent)
        return "", (
            f"--watch-launches: the last launches of {listed} could not be had within {timeout_s:g} s and are not "
            f"compared; what was heard of them before does not differ"
        )

    async def _hear_last(self, timeout_s: float) -> list[int]:
        """Asks for what each rank, dead or alive, has launched; returns those whose agents have not answered."""
        asked = [agent.launches.remote(task.attempt_id) for agent, task in zip(self._agents, self._tasks, strict=True)]
        answers = await asyncio.gather(
            *(asyncio.wait_for(answer, timeout_s) for answer in asked), return_exceptions=True
        )
        silent = []
        for rank, said in enumerate(answers):
            if isinstance(said, RayError | TimeoutError):
                silent.append(rank)
            elif isinstance(said, BaseException):
                raise said
            elif said is not None:
                self._ledger.hear(rank, said["launches"], said["launch_hash"], said["tail"])
        return silent
