"""The supervisor's side of an interactive gang: one client's connection on one side, the ranks' agents on the other.

The connection is the gang's lease: when it is closed, however that came, the gang ends and its hosts are free.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from launcher.call_verdict import STANDING_S, Standing, part_ways
from launcher.client_server import Wire
from launcher.error_text import named, traceback_text
from launcher.gang import Gang
from launcher.interactive import CALL, END, IDLE
from launcher.job_run import JobRun
from launcher.protocol import Message
from launcher.rank_process import keep
from launcher.stacks import innermost, main_stack

LOOK_S = 0.5
NOTE_S = 2.0  # after which the client is told that ranks have left a call that others are still in
INTERRUPT_S = 5.0  # for a rank to come back from an interrupt
LOG_S = 2.0  # for what a call has printed to arrive
INLINE_BYTES = 100_000  # larger ones go through Ray's object store, once for all hosts


class GangTalk:
    """Serves one gang as long as its client is there.

    Args:
        job: the gang's.
        wire: to the client.
        cancel: ends the job, and says why.
    """

    def __init__(self, job: JobRun, wire: Wire, cancel: Callable[[str], Awaitable[Any]]):
        self._job = job
        self._wire = wire
        self._cancel = cancel
        self._number = 0  # of the call that is under way
        self._name = ""
        self._interrupted: float | None = None
        self._ready = False

    async def serve(self) -> None:
        """Takes what the client asks, until it is gone."""
        self._job.listener = self._hear
        telling = keep(self._tell())
        try:
            async for request, data in self._wire.requests():
                match request["op"]:
                    case "call":
                        keep(self._take(request, data))
                    case "interrupt":
                        keep(self._interrupt())
                    case "end":
                        keep(self._end())
        finally:
            telling.cancel()
            if not self._job.record.state.ended:
                await self._cancel("its client has gone without ending it")

    def _hear(self, rank: int, event: Message) -> None:
        gang = self._job.gang
        # What ranks write when another has gone, JAX's stacks in C++, is in the log, and no help to anybody here.
        if event["type"] == "log" and self._ready and gang is not None and not gang.bad_ends:
            self._wire.send({"type": "output", "rank": rank, "text": event["text"]})

    async def _tell(self) -> None:
        """Tells the client when the gang is ready, and when it has ended."""
        record = self._job.record
        while not record.state.ended:
            ranks = self._job.gang.ranks if self._job.gang else []
            if not self._ready and ranks and all(rank.phase == IDLE for rank in ranks):
                self._ready = True
                self._wire.send({"type": "ready", "hosts": [rank.host for rank in ranks]})
            record.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(record.changed.wait(), LOOK_S)
        self._wire.send({"type": "ended", "state": record.state, "message": record.message})

    async def _end(self) -> None:
        if gang := self._job.gang:
            for agent, task in zip(gang.agents, gang.tasks, strict=True):
                with contextlib.suppress(RayError):  # then the gang has ended otherwise
                    await agent.tell.remote(task.attempt_id, {"type": END})

    # -- one call

    async def _take(self, request: Message, payload: bytes) -> None:
        try:
            await self._call(request, payload)
        except Exception as error:  # a defect of ours must end the gang with a message, not leave its client waiting
            self._job.record.event("launcher-error", error=repr(error))
            await self._cancel(f"the launcher failed, not the function: {error!r}")
            raise

    async def _call(self, request: Message, payload: bytes) -> None:
        gang = self._job.gang
        if gang is None or self._job.record.state.ended:
            return  # the client is told of the end
        self._number, self._name, self._interrupted = request["number"], request["name"], None
        began = time.monotonic()
        passed = {key: request[key] for key in ("number", "name", "function_bytes", "compare", "free")}
        sent = ray.put(payload) if len(payload) > INLINE_BYTES else payload
        asked = {
            rank: asyncio.ensure_future(
                _answer(agent.call.remote(task.attempt_id, {**passed, "sent": rank in request["ship"]}, sent))
            )
            for rank, (agent, task) in enumerate(zip(gang.agents, gang.tasks, strict=True))
        }
        await self._until_all_answer(gang, asked)
        answers = [ask.result() for ask in asked.values()]
        self._number = 0
        if self._job.record.state.ended or any(answer["outcome"] == "ended" for answer in answers):
            return
        outcomes = {answer["outcome"] for answer in answers}
        self._job.record.event(
            "call", number=request["number"], name=request["name"], seconds=round(time.monotonic() - began, 6),
            outcome=outcomes.pop() if len(outcomes) == 1 else "raised on some ranks",
        )  # fmt: skip
        if why := part_ways(answers):
            self._end_apart(gang, answers, why)
            return
        with contextlib.suppress(RayError):  # a host is lost, and with it the gang
            await self._pass_on(gang, request, answers)

    async def _until_all_answer(self, gang: Gang, asked: Mapping[int, "asyncio.Future[Message]"]) -> None:
        """Waits; ends the gang where some ranks would wait for ever."""
        standing: Standing | None = None
        noted = given_up = False
        while pending := [ask for ask in asked.values() if not ask.done()]:
            await asyncio.wait(pending, timeout=LOOK_S)
            inside = [rank for rank, ask in asked.items() if not ask.done()]
            left = {rank: ask.result() for rank, ask in asked.items() if ask.done()}
            raised = {rank: answer for rank, answer in left.items() if answer["outcome"] == "raised"}
            if not inside or given_up:
                continue
            if self._interrupted is not None:
                self._interrupt_again(gang, inside)
                if time.monotonic() - self._interrupted > INTERRUPT_S:
                    given_up = True
                    await self._end_uninterrupted(gang, inside)
            elif raised:
                ranks = gang.watch.ranks()
                own_s = {rank: ranks[rank].own_s for rank in inside}
                standing = standing or Standing(time.monotonic(), own_s)
                stood_s = standing.stood_s(time.monotonic(), own_s)
                if stood_s >= NOTE_S and not noted:
                    noted = True
                    self._wire.send({"type": "note", "text": f"{_first(raised)}; {named(inside)} still in the call"})
                if stood_s >= STANDING_S:
                    given_up = True
                    await self._end_hopeless(gang, raised, inside)

    async def _pass_on(self, gang: Gang, request: Message, answers: Sequence[Message]) -> None:
        """Sends what the call has printed, what it has returned, and how it went."""
        deadline = time.monotonic() + LOG_S
        while any(rank.heard < answers[rank.rank]["events"] for rank in gang.ranks) and time.monotonic() < deadline:
            await asyncio.sleep(0.002)
        if all(answer["outcome"] == "returned" for answer in answers):
            for rank in request["ship"]:
                await self._ship(gang, rank, request["number"], answers[rank])
        keys = ("outcome", "seconds", "leaves", "error")
        said = [{key: answer[key] for key in keys if key in answer} for answer in answers]
        for answer in said[1:]:  # equal ones are not told again for each of many ranks
            if answer.get("leaves") == said[0].get("leaves"):
                answer.pop("leaves", None)
        self._wire.send({"type": "answer", "number": request["number"], "ranks": said})

    async def _ship(self, gang: Gang, rank: int, number: int, answer: Message) -> None:
        agent, attempt_id = gang.agents[rank], gang.tasks[rank].attempt_id
        data, num_sent = answer["data"], 0
        while True:
            self._wire.send({"type": "piece", "number": number, "rank": rank}, data)
            await self._wire.sent()
            num_sent += len(data)
            if num_sent >= answer["size"]:
                break
            data = await agent.returned.remote(attempt_id, number, num_sent)

    async def _interrupt(self) -> None:
        gang = self._job.gang
        if gang is not None and self._number:
            self._interrupted = time.monotonic()
            self._interrupt_again(gang, range(len(gang.agents)))

    def _interrupt_again(self, gang: Gang, ranks: Iterable[int]) -> None:
        """A rank takes the first in a call; one that comes before the call has come to the rank is lost."""
        for rank in ranks:
            gang.agents[rank].interrupt.remote(gang.tasks[rank].attempt_id, self._number)

    # -- ends

    async def _end_hopeless(self, gang: Gang, raised: Mapping[int, Message], inside: Sequence[int]) -> None:
        stacks = await gang.take_stacks()
        places = {rank: innermost(stacks.get(rank, "")) or "a place unknown" for rank in inside}
        where = "; ".join(f"rank {rank} waits at {place}" for rank, place in places.items())
        self._end_by(gang, raised, f"{named(inside)} would wait for it for ever: {where}")

    def _end_apart(self, gang: Gang, answers: Sequence[Message], why: str) -> None:
        raised = {rank: answer for rank, answer in enumerate(answers) if answer["outcome"] == "raised"}
        if raised:
            self._end_by(gang, raised, why)
        else:
            gang.fail(0, differs=why)

    def _end_by(self, gang: Gang, raised: Mapping[int, Message], why: str) -> None:
        for rank, answer in raised.items():
            error = answer["error"]
            text = traceback_text(error["parts"])
            message = f"{error['message']}; {why}" if error["message"] else why
            told = {"type": error["type"], "message": message, "traceback": text}
            gang.fail(rank, error=told, phase=f"{CALL} {self._name}")

    async def _end_uninterrupted(self, gang: Gang, inside: Sequence[int]) -> None:
        stacks = await gang.take_stacks()
        text = "".join(f"\nrank {rank}:\n{main_stack(stacks.get(rank, ''))}" for rank in inside)
        for rank in inside:
            gang.fail(rank, hung=f"did not come back from an interrupt within {INTERRUPT_S:g} s{text}")


def _first(raised: Mapping[int, Message]) -> str:
    rank, answer = next(iter(raised.items()))
    return f"rank {rank} raised {answer['error']['type']}: {answer['error']['message']}"


async def _answer(asked: Any) -> Message:
    """What an agent answers; a rank whose agent cannot be reached has ended, which its gang tells."""
    try:
        answer: Message = await asked
    except RayError:
        return {"outcome": "ended"}
    return answer
