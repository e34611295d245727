"""What a gang makes of what it hears, and of agents that give no answer. Agents without Ray."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import launcher.gang
from launcher.aftermath import explained_by_a_loss
from launcher.attempt import AGENT_RESTARTED, HostNews, RankTask
from launcher.certificates import Authority, new_request
from launcher.command import Command
from launcher.first_cause import FirstCause, first_cause
from launcher.gang import Gang
from launcher.gang_watch import GangWatch
from launcher.job import RankEnd
from launcher.rank_process import Message
from launcher.recovery import Cause
from launcher.watchdog import Finding
from tests.launcher.in_process import InProcess
from tests.launcher.test_host_attempt import TASK

pytestmark = pytest.mark.usefixtures("state_folder")  # there is no folder of the job: nothing can be written there

PLACE = {
    "type": "progress",
    "phase": "run",
    "step": 1,
    "total": 9,
    "moves": 5,
    "launches": 3,
    "since": 0.0,
    "own_s": 0.0,
}


class RankAgent:
    """The agent of a rank that says these events, and then nothing more.

    Args:
        events: that it says.
        silent_s, state: how the process is; "" from its exit on.
        late_s: seconds that it is busy before it says any.
        starts: whether it has started the process, which else it is still about to do.
        stopped: what it says when it is told to stop.
        loses_its_files: whether it cannot tell what the rank has launched.
    """

    def __init__(
        self,
        *events: Message,
        silent_s: float = 0.0,
        state: str = "S",
        late_s: float = 0.05,
        starts: bool = True,
        stopped: Sequence[Message] = (),
        loses_its_files: bool = False,
    ):
        has_exited = any(event["type"] == "exit" for event in events)
        state = "" if has_exited else state
        self._news = HostNews(events=events, progress=PLACE, silent_s=silent_s, state=state)
        self._late_s = late_s
        self._starts = starts
        self._knows = False
        self._stopped = stopped
        self._loses_its_files = loses_its_files

    async def certificate_request(self, attempt_id: str) -> bytes:
        return new_request()[1]

    async def start(self, task: Any) -> int:
        await asyncio.sleep(0.0 if self._starts else 600.0)
        self._knows = True
        return 4711

    async def events(self, attempt_id: str, after: int, wait_s: float) -> HostNews:
        await asyncio.sleep(self._late_s)
        if not self._knows:
            return HostNews(events=[{"type": "exit", "code": -1, "lost": AGENT_RESTARTED}])
        return dataclasses.replace(self._news, events=self._news.events[after:])

    async def stacks(self, attempt_id: str) -> str:
        return "no stack"

    async def launches(self, attempt_id: str) -> None:
        if self._loses_its_files:
            raise OSError(5, "Input/output error")

    async def tell(self, attempt_id: str, message: Message) -> None: ...

    async def stop(self, attempt_id: str) -> None:
        self._news = dataclasses.replace(self._news, events=[*self._news.events, *self._stopped])


def raised(kind: str, message: str = "no") -> Message:
    text = f'Traceback (most recent call last):\n  File "run.py", line 3, in run\n{kind}: {message}\n'
    return {"type": "error", "error": {"type": kind.rpartition(".")[2], "message": message, "traceback": text}}


def run(folder: Path, agents: Sequence[RankAgent], full_disk: bool = False) -> tuple[FirstCause, list[Message]]:
    """Runs a gang to its end, which must come in seconds."""
    gang, heard = run_gang(folder, agents, full_disk)
    return first_cause(gang.bad_ends), heard


def run_gang(
    folder: Path, agents: Sequence[RankAgent], full_disk: bool = False, task: RankTask = TASK
) -> tuple[Gang, list[Message]]:
    heard: list[Message] = []

    def hear(rank: int, event: Message) -> None:
        heard.append(event)
        if full_disk and event["type"] == "watchdog":
            raise OSError(28, "No space left on device")

    async def program() -> Gang:
        hosts = [f"h{rank}" for rank in range(len(agents))]
        tasks = [dataclasses.replace(task, rank=rank, num_ranks=len(agents)) for rank in range(len(agents))]
        gang = Gang(hosts, [InProcess(agent) for agent in agents], tasks, Authority.open(folder, "lab-1"), hear)
        await asyncio.wait_for(gang.run(), 30.0)
        return gang

    return asyncio.run(program()), heard


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (raised("ValueError"), Cause.FAILURE, "rank 0 on host h0 raised ValueError: no"),
        (raised("jax.errors.JaxRuntimeError", "Gloo: closed by peer"), Cause.PREEMPTED, "rank 1 on host h1 was lost"),
    ],
)
def test_a_busy_agent_hides_no_error_that_needs_no_lost_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Message, cause: Cause, words: str
) -> None:
    monkeypatch.setattr(launcher.gang, "CAUSE_TIMEOUT_S", 0.2)
    found, _ = run(tmp_path, [RankAgent(error), RankAgent(late_s=600.0)])
    assert found.cause is cause and found.sentence.startswith(words)


@pytest.mark.parametrize(
    "follows",
    [
        raised("jax.errors.JaxRuntimeError", "Gloo: closed by peer"),
        raised("KeyError"),  # and does not say whence
        {"type": "exit", "code": 1},
        {"type": "exit", "code": -6},
    ],
)
def test_what_may_follow_from_an_end_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follows: Message
) -> None:
    monkeypatch.setattr(launcher.gang, "LOOK_TIMEOUT_S", 0.2)
    busy = RankAgent({"type": "exit", "code": -9}, late_s=1.5)
    found, _ = run(tmp_path, [RankAgent(follows), busy])
    assert found.sentence.startswith("rank 1 on host h1 was killed by signal 9")


def test_an_error_waits_for_no_rank_that_is_known_to_live(tmp_path: Path) -> None:
    began = time.monotonic()
    found, _ = run(tmp_path, [RankAgent(raised("jax.errors.JaxRuntimeError", "own")), RankAgent(state="T")])
    assert found.sentence.startswith("rank 0 on host h0 raised JaxRuntimeError: own")
    assert time.monotonic() - began < launcher.gang.CAUSE_TIMEOUT_S / 2


def test_a_rank_that_is_not_started_yet_is_not_taken_for_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher.gang, "CAUSE_TIMEOUT_S", 0.5)
    found, _ = run(tmp_path, [RankAgent({"type": "exit", "code": 1}), RankAgent(starts=False)])
    assert (found.cause, found.sentence[:36]) == (Cause.FAILURE, "rank 0 on host h0 ended with exit co")


def test_an_attempt_is_over_when_the_files_of_rank_0_have_come(tmp_path: Path) -> None:
    ends = {"type": "exit", "code": 1, "brings_back": True}
    last = [{"type": "log", "text": "cannot come\n"}, {"type": "brought-back"}]
    found, heard = run(tmp_path, [RankAgent(ends, stopped=last), RankAgent(raised("JaxRuntimeError", "Gloo: closed"))])
    assert found.sentence.startswith("rank 0 on host h0 ended with exit code 1")
    assert {"type": "log", "text": "cannot come\n"} in heard


def test_how_the_others_end_when_they_are_stopped_is_heard(tmp_path: Path) -> None:
    last = [{"type": "log", "text": "good bye\n"}, {"type": "exit", "code": -9}]
    found, heard = run(tmp_path, [RankAgent({"type": "exit", "code": 3}), RankAgent(stopped=last)])
    assert found.sentence.startswith("rank 0 on host h0 ended with exit code 3")
    assert [event["text"] for event in heard if event["type"] == "log"] == ["good bye\n"]
    assert [event.get("stopped") for event in heard if event["type"] == "exit"] == [False, True]


def test_a_lost_port_is_no_end_of_any_rank(tmp_path: Path) -> None:
    lost = [{"type": "port-lost", "why": "taken"}, {"type": "exit", "code": 1}]
    gang, heard = run_gang(tmp_path, [RankAgent(*lost), RankAgent()])
    assert gang.port_lost and not gang.bad_ends and not gang.succeeded
    assert [event["why"] for event in heard if event["type"] == "port-lost"] == ["taken"]


def test_an_exit_code_never_says_that_a_port_was_lost(tmp_path: Path) -> None:
    gang, _ = run_gang(tmp_path, [RankAgent(), RankAgent({"type": "exit", "code": 75})])
    assert not gang.port_lost
    assert first_cause(gang.bad_ends).sentence.startswith("rank 1 on host h1 ended with exit code 75")


def test_launches_that_are_not_known_at_the_end_are_told_and_fail_nothing(tmp_path: Path) -> None:
    ends = [{"type": "result", "metrics": {}, "result_digest": ""}, {"type": "exit", "code": 0}]
    task = dataclasses.replace(TASK, command=Command(words=["true"]), watch_launches=True)
    gang, heard = run_gang(tmp_path, [RankAgent(*ends), RankAgent(*ends, loses_its_files=True)], task=task)
    assert gang.succeeded
    (warning,) = [event["text"] for event in heard if event["type"] == "warning"]
    assert warning.startswith("--watch-launches: the last launches of rank 1 on host h1 could not be had")


def test_survivors_that_wait_for_a_dead_rank_are_not_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def findings(self: GangWatch) -> AsyncIterator[list[Finding]]:
        yield [Finding(kind="slow", ranks=(0,), text="is slow", fatal=False)]
        await asyncio.sleep(1.0)  # until rank 1 has ended, for whose agent's answer the others are still asked
        yield [Finding(kind="stuck", ranks=(0,), text="made no progress for 10 s", fatal=True)]

    monkeypatch.setattr(GangWatch, "findings", findings)
    agents = [RankAgent(), RankAgent({"type": "exit", "code": -9}), RankAgent(late_s=2.0)]
    found, _ = run(tmp_path, agents)
    assert found.sentence.startswith("rank 1 on host h1 was killed by signal 9")


def test_ranks_that_the_lease_has_ended_were_lost(tmp_path: Path) -> None:
    exits = {"type": "exit", "code": -9, "lost": "its lease ran out: the supervisor had not asked for 12 s"}
    found, _ = run(tmp_path, [RankAgent(exits), RankAgent(exits)])
    assert found.cause is Cause.PREEMPTED
    assert found.sentence == f"ranks 0 on h0, 1 on h1 each was lost during 'start': {exits['lost']}"


def test_the_last_words_of_a_process_are_its_own(tmp_path: Path) -> None:
    gloos = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
    logs = [{"type": "log", "text": text} for text in (f"no such user\n{gloos}", gloos)]
    found, _ = run(tmp_path, [RankAgent(*logs, {"type": "exit", "code": 7})])
    assert found.sentence.endswith("without a Python exception; its last words: 'no such user'")


def end(**how: Any) -> RankEnd:
    return RankEnd(rank=0, host="h0", **how)


@pytest.mark.parametrize(
    ("ends", "explained"),
    [
        ([], False),  # a port was lost: that is not an end
        ([end(error=raised("workloads.exchange.AbsentError")["error"])], True),
        (
            [end(error=raised("jaxlib._jax.XlaRuntimeError", "UNAVAILABLE")["error"]), end(signal=6, abandoned=True)],
            True,
        ),
        ([end(error={**raised("ValueError")["error"], "traceback": "TimeoutError: x\n\nValueError: no\n"})], True),
        ([end(error=raised("jax.errors.JaxRuntimeError", "RESOURCE_EXHAUSTED: memory")["error"])], False),
        ([end(error={**raised("TimeoutError")["error"], "cause": "refused"})], False),
        ([end(exit_code=1)], True),
        ([end(exit_code=7)], False),
        ([end(signal=9)], False),
        ([end(hung="made no progress")], False),
        ([end(signal=6, abandoned=True), end(signal=6)], False),
    ],
)
def test_what_a_lost_host_explains(ends: list[RankEnd], explained: bool) -> None:
    assert explained_by_a_loss(ends) == explained


@pytest.mark.parametrize("full_disk", [False, True])
def test_a_hung_rank_is_named_though_nothing_can_be_written(tmp_path: Path, full_disk: bool) -> None:
    found, heard = run(tmp_path, [RankAgent(), RankAgent(silent_s=11.0, state="T")], full_disk)
    assert found.sentence.startswith("rank 1 on host h1 has said nothing for 11 s: its process is stopped")
    assert [event["fatal"] for event in heard if event["type"] == "watchdog"] == [True]


def test_a_watch_that_fails_ends_the_attempt_instead_of_leaving_it_unwatched(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path, [RankAgent(), RankAgent(silent_s=11.0, state="R")], full_disk=True)
