"""One attempt across all hosts: start every rank, pass on the coordinator's address, listen, stop all if one fails."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from launcher.aftermath import explained_by_a_loss
from launcher.attempt import HostNews, RankStatus, RankTask
from launcher.certificates import Authority
from launcher.command import EXIT_NO_PROGRAM, NoProgramError
from launcher.environment import LEASE_S
from launcher.first_cause import is_settled
from launcher.gang_launches import GangLaunches
from launcher.gang_watch import GangWatch
from launcher.job import RankEnd
from launcher.rank_process import Message
from launcher.stack_files import write_stacks
from launcher.stacks import innermost
from launcher.user_lines import users_part
from launcher.watchdog import Finding

GRACE_S = 0.3  # after the first bad end: time for equal errors of other ranks, and for the death behind an error
LOOK_TIMEOUT_S = 3.0  # and for the agents to say how the other ranks are
CAUSE_TIMEOUT_S = 8.0  # where one of those may have ended before
LOOK_S = 0.05
DEAD = ("", "Z", "X")  # what the kernel says of a process that runs no more
LAST_WORDS_S = 0.3  # after all have been ended: what they have said and how they ended is on its way
POLL_S = 1.0  # how long an agent may hold back its answer
ANSWER_TIMEOUT_S = 3.0  # and how much longer it takes before we ask again; `launcher.watchdog` counts the silence
RETRY_S = 0.3
PAUSE_S_A_RANK = 0.001  # between two questions to an agent: ranks that talk much must not fill the supervisor's core
MAX_PAUSE_S = 0.25  # below GRACE_S, in which errors of other ranks are still heard
START_TIMEOUT_S = 60.0
STACKS_TIMEOUT_S = 5.0
MAX_STACKS_IN_TEXT = 3
MAX_LAST_WORDS = 200
STANDING = ("silent", "stuck", "together")  # findings that stacks explain
AFTERMATH = ("stuck", "together")  # and that the end of another rank leads to
STOP_TIMEOUT_S = 10.0
FILES_TIMEOUT_S = 60.0  # for a rank that has ended, and whose files are moved to its results: many, or to another disk


class Gang:
    """The ranks of one attempt.

    Args:
        hosts: names, in the order of ranks.
        agents: Ray handles of those hosts' agents.
        tasks: one a rank.
        authority: signs the ranks' certificates.
        hear: receives `(rank, event)` for everything worth recording.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        agents: Sequence[Any],
        tasks: Sequence[RankTask],
        authority: Authority,
        hear: Callable[[int, Message], None],
    ):
        self.agents = agents
        self.tasks = tasks
        self.ranks = [RankStatus(rank, host) for rank, host in enumerate(hosts)]
        self.bad_ends: list[RankEnd] = []
        self.port_lost = False
        self.watch = GangWatch(hosts)
        self.launches = GangLaunches(hosts, agents, tasks)
        self._authority = authority
        self._hear = hear
        self._explained: set[int] = set()  # ranks that have told why they end, before they do
        self._last_words: dict[int, str] = {}
        self._failed = asyncio.Event()
        self.joined = asyncio.Event()
        self._num_joined = 0
        self._stopping = False
        self._over = False
        self._coordinator: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def succeeded(self) -> bool:
        return not self.bad_ends and not self.port_lost and all(rank.result is not None for rank in self.ranks)

    async def run(self) -> None:
        """Runs the attempt to its end; afterwards no process of it is left on any host that can be reached."""
        followers = [asyncio.ensure_future(self._follow(rank)) for rank in self.ranks]
        everyone: asyncio.Future[Any] = asyncio.gather(*followers)
        failure: asyncio.Future[Any] = asyncio.ensure_future(self._failed.wait())
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({everyone, failure, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done() and not self._failed.is_set():
                watching.result()  # it looks for ever, or has failed: without it a gang that hangs would hang unseen
            if everyone.done():
                everyone.result()  # a defect of ours must not pass for an end without a cause
                await self._compare_at_end()
            if self._failed.is_set():
                await asyncio.wait(followers, timeout=GRACE_S)
                looks = [self._look_for(rank) for rank in self.ranks if not rank.ended]
                await asyncio.gather(self._compare_when_failed(), *looks)
        finally:
            failure.cancel()
            watching.cancel()
            await self.stop()
            if started := [f for rank, f in zip(self.ranks, followers, strict=True) if rank.pid is not None]:
                await asyncio.wait(started, timeout=LAST_WORDS_S)
            self._over = True  # a follower may not hear that it is cancelled: Python's `wait_for` can swallow it
            for follower in followers:
                follower.cancel()
            await asyncio.gather(everyone, watching, return_exceptions=True)

    async def stop(self) -> None:
        """Ends every rank, wherever it is; how they end from now on is our doing."""
        self._stopping = True
        running = [(rank, agent) for rank, agent in zip(self.ranks, self.agents, strict=True) if not rank.ended]
        stops = [
            _within(
                agent.stop.remote(self.tasks[rank.rank].attempt_id), FILES_TIMEOUT_S if rank.exited else STOP_TIMEOUT_S
            )
            for rank, agent in running
        ]
        await asyncio.gather(*stops)  # where one fails, nothing can be alive: a rank does not outlive its agent

    def fail(self, rank: int, **how: Any) -> None:
        """Ends the attempt, because this rank cannot go on.

        Args:
            how: it ended, as in `launcher.job.RankEnd`.
        """
        self._end_badly(self.ranks[rank], **how)

    async def _look_for(self, rank: RankStatus) -> None:
        """Asks an agent for its rank, until that is known to live, so that its end has led to no other's, or has ended.

        What an end leads to can be heard before it: agents are busy, and Ray tells late of a host that is lost. No
        answer alone tells little: a busy host gives none in time, and a short cut of the network is survived.
        """
        if rank.pid is None:  # there is no process that could have ended, and `_start` hears of an agent that dies
            return
        agent, attempt_id = self.agents[rank.rank], self.tasks[rank.rank].attempt_id
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S if is_settled(self.bad_ends) else CAUSE_TIMEOUT_S):
                while not rank.exited and not rank.ended:
                    news: HostNews = await agent.events.remote(attempt_id, rank.heard, 0.0)
                    if news.state not in DEAD:
                        return
                    await asyncio.sleep(LOOK_S)  # its follower hears how it ended
        except (RayError, TimeoutError) as error:
            passes = isinstance(error, (ActorUnavailableError, TimeoutError))
            known = rank.exited or rank.ended
            if not known and not (passes and not explained_by_a_loss(self.bad_ends)):
                self._end_badly(rank, lost=f"its agent cannot be reached ({type(error).__name__})")
                rank.ended = self.watch.host_silent_s(rank.rank) > LEASE_S

    async def _follow(self, rank: RankStatus) -> None:
        try:
            rank.pid = await asyncio.wait_for(self._start(rank), START_TIMEOUT_S)
            introduction = asyncio.ensure_future(self._introduce(rank))
            try:
                await self._listen(rank)
            finally:
                introduction.cancel()
        except TimeoutError:
            self._end_badly(rank, lost=f"its agent did not start a process within {START_TIMEOUT_S:g} s")
            rank.ended = True
        except RayTaskError as error:
            if isinstance(error.cause, NoProgramError):
                self._end_badly(rank, exit_code=EXIT_NO_PROGRAM, last_words=str(error.cause))
            else:
                self._end_badly(rank, lost=f"its agent failed: {error.cause!r}")
            rank.ended = True
        except RayError as error:  # Ray has several more words for a node that is gone
            self._end_badly(rank, lost=f"its agent cannot be reached ({type(error).__name__})")
            rank.ended = True

    async def _start(self, rank: RankStatus) -> int:
        """Starts a rank, whose key its agent has made and whose certificate names this attempt."""
        agent, task = self.agents[rank.rank], self.tasks[rank.rank]
        request = await agent.certificate_request.remote(task.attempt_id)
        certificate = self._authority.issue(request, task.attempt_id, rank.rank)
        pid: int = await agent.start.remote(dataclasses.replace(task, certificate=certificate))
        return pid

    async def _introduce(self, rank: RankStatus) -> None:
        """Tells a started rank, all but the first, where the coordination service listens, once it does."""
        if rank.rank > 0:
            message = {"type": "coordinator", "address": await asyncio.shield(self._coordinator)}
            await self.agents[rank.rank].tell.remote(self.tasks[rank.rank].attempt_id, message)

    async def _listen(self, rank: RankStatus) -> None:
        heard = 0
        while not rank.ended and not self._over:
            news = await self._ask(rank, heard)
            if news is None:
                continue
            self.watch.hear(rank.rank, news)
            self._end_if_launches_differ(rank, self.launches.hear(rank.rank, news))
            heard += len(news.events)
            for event in news.events:
                self._handle(rank, dict(event))
            rank.heard = heard
            if not rank.ended:
                await asyncio.sleep(min(MAX_PAUSE_S, PAUSE_S_A_RANK * len(self.ranks)))

    async def _compare_when_failed(self) -> None:
        self._end_if_launches_differ(self.ranks[0], await self.launches.when_failed())

    async def _compare_at_end(self) -> None:
        if self.succeeded:
            difference, unknown = await self.launches.at_end()
            self._end_if_launches_differ(self.ranks[0], difference)
            if unknown:
                self._hear(0, {"type": "warning", "text": unknown})

    def _end_if_launches_differ(self, rank: RankStatus, difference: str) -> None:
        if difference and not any(end.differs for end in self.bad_ends):
            self._end_badly(rank, differs=difference)

    async def _ask(self, rank: RankStatus, heard: int) -> HostNews | None:
        """One question to an agent; None: no answer, which may mean a cut of the network that passes."""
        asked = self.agents[rank.rank].events.remote(self.tasks[rank.rank].attempt_id, heard, POLL_S)
        try:
            news: HostNews = await asyncio.wait_for(asked, POLL_S + ANSWER_TIMEOUT_S)
        except (ActorUnavailableError, TimeoutError):
            await asyncio.sleep(RETRY_S)
            return None
        return news

    async def _watch(self) -> None:
        """Tells what the watchdog finds; what cannot go on is ended, its stacks having been taken."""
        async for findings in self.watch.findings():
            standing = not self.bad_ends and any(finding.kind in STANDING for finding in findings)
            stacks = await self.take_stacks() if standing else {}  # once, however many ranks are silent
            for finding in findings:
                if self.bad_ends and finding.kind in AFTERMATH:
                    continue
                text = finding.text
                if finding.kind in STANDING:
                    text += "".join(_stands_at(rank, stacks) for rank in finding.ranks[:MAX_STACKS_IN_TEXT])
                if finding.fatal:
                    self._give_up(finding, text)
                details = {"type": "watchdog", "finding": finding.kind, "text": text, "fatal": finding.fatal}
                self._hear(finding.ranks[0], {**details, "ranks": list(finding.ranks)})

    async def take_stacks(self) -> dict[int, str]:
        """The stacks of all ranks that run, in a few seconds at most; they are also kept with the job's logs."""
        running = [rank for rank in self.ranks if rank.pid is not None and not rank.ended]
        texts = await asyncio.gather(*(self._stack(rank) for rank in running))
        stacks = {rank.rank: text for rank, text in zip(running, texts, strict=True)}
        with contextlib.suppress(OSError):  # the head's disk is full: they are told all the same
            write_stacks(self.tasks[0], stacks)
        return stacks

    async def _stack(self, rank: RankStatus) -> str:
        try:
            asked = self.agents[rank.rank].stacks.remote(self.tasks[rank.rank].attempt_id)
            text: str = await asyncio.wait_for(asked, STACKS_TIMEOUT_S)
        except (RayError, TimeoutError) as error:
            return f"no stack: the agent of host {rank.host} did not answer ({type(error).__name__})\n"
        return text

    def _give_up(self, finding: Finding, text: str) -> None:
        for rank in (self.ranks[number] for number in finding.ranks):
            if not rank.ended:
                lost = finding.kind == "host-silent"
                self._end_badly(rank, **{"lost" if lost else "hung": text})
                rank.ended = lost  # its lease has ended it, and nobody would answer when told to stop it

    def _handle(self, rank: RankStatus, event: Message) -> None:
        kind = event["type"]
        if kind == "log":
            parts = (users_part(line) for line in reversed(event["text"].split("\n")))
            if words := next((part.strip() for part in parts if part and part.strip()), ""):
                self._last_words[rank.rank] = words[-MAX_LAST_WORDS:]
        elif kind == "coordinator":
            self._coordinator.set_result(event["address"])
        elif kind == "phase":
            rank.phase = event["phase"]
        elif kind == "report":
            rank.step, rank.total, rank.metrics = event["step"], event["total"], event["metrics"]
        elif kind == "joined":
            self._num_joined += 1
            if self._num_joined == len(self.ranks):
                self.joined.set()
        elif kind == "result":
            rank.result = event
            self.watch.finish(rank.rank, ended=False)
            rank.phase = "done"
        elif kind == "port-lost":
            self._explained.add(rank.rank)
            self.port_lost = True
            self._failed.set()
        elif kind == "error":
            # Not an end yet, but nothing good can follow: JAX would wait for its peers for minutes.
            self._explained.add(rank.rank)
            self._end_badly(rank, error=event["error"], memory=event["error"].get("memory"))
        elif kind == "exit":
            rank.exited = True
            rank.ended = not event.pop("brings_back", False)
            event["stopped"] = self._stopping
            self.watch.finish(rank.rank, ended=rank.ended)
            self._handle_exit(rank, event)
        elif kind == "brought-back":
            rank.ended = True
            self.watch.finish(rank.rank, ended=True)
            return
        self._hear(rank.rank, event)

    def _handle_exit(self, rank: RankStatus, event: Message) -> None:
        code = event["code"]
        if event.get("lost"):
            self._end_badly(rank, lost=event["lost"])
        elif (code != 0 or rank.result is None) and rank.rank not in self._explained:
            self._end_badly(
                rank,
                exit_code=None if code < 0 else code,
                last_words=self._last_words.get(rank.rank, ""),
                signal=-code if code < 0 else None,
                abandoned=event.get("abandoned", False),
                out_of_memory=event.get("out_of_memory", False),
                memory=event.get("memory"),
            )

    def _end_badly(self, rank: RankStatus, **how: Any) -> None:
        if self._stopping:
            return
        phase = f"{rank.phase}, step {rank.step} of {rank.total}" if rank.total else rank.phase
        how.setdefault("phase", phase)
        self.bad_ends.append(RankEnd(rank=rank.rank, host=rank.host, order=len(self.bad_ends), **how))
        self._failed.set()


def _stands_at(rank: int, stacks: Mapping[int, str]) -> str:
    place = innermost(stacks.get(rank, ""))
    return f"; rank {rank} is at {place}" if place else ""


async def _within(answer: Any, timeout_s: float) -> Message | None:
    """An agent's answer, or None where it gives none."""
    try:
        said: Message | None = await asyncio.wait_for(answer, timeout_s)
    except (RayError, TimeoutError):
        return None
    return said
