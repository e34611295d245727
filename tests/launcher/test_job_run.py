"""The life of one job: what the launcher makes of odd ends. Agents without Ray; see `test_recovery` for real."""

import asyncio
import contextlib
import dataclasses
import errno
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from launcher.blobs import BlobStore
from launcher.certificates import Authority
from launcher.command import Command
from launcher.host_pool import HostPool
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.job_record import JobRecord
from launcher.job_run import JobRun
from launcher.left_files import LeftFiles
from launcher.rank_process import Message
from launcher.recovery import Stop
from tests.cluster.test_record import _cluster
from tests.conftest import job_spec
from tests.launcher.full_disk import full_disk
from tests.launcher.in_process import InProcess
from tests.launcher.test_gang import RankAgent
from tests.launcher.test_replay import attempt, diverged, failed
from workloads.fence import write_fence

pytestmark = pytest.mark.usefixtures("state_folder")

HOSTS = ["laptop-0", "laptop-1"]
RESULT = {"type": "result", "metrics": {}, "diagnostics": {}, "result_digest": "d"}
EXIT = {"type": "exit", "code": 0}


class HostAgent(RankAgent):
    """The agent of a host whose ranks succeed; it is lost to so many who ask for their results, or stands still."""

    def __init__(
        self, *events: Message, losses: int = 0, ends: Sequence[Message] = (RESULT, EXIT), stands: bool = False
    ):
        super().__init__({"type": "joined"}, *events, *ends)
        self._losses = losses
        self._stands = stands

    async def has(self, digests: Sequence[str]) -> Sequence[str]:
        return digests

    async def collect(self, attempt_id: str) -> LeftFiles:
        self._losses -= 1
        if self._losses >= 0:
            if self._stands:
                await asyncio.Event().wait()
            raise ActorUnavailableError("the network is cut", None)
        return LeftFiles()

    async def keep_output(self, attempt_id: str, fetched: Sequence[str]) -> str:
        return "/host/left"

    async def clock(self) -> float:
        return 0.0

    async def fill_standby(self) -> None: ...

    async def forget(self, attempt_id: str) -> None: ...


def run(
    folder: Path,
    agents: Sequence[Any],
    before: Sequence[Message] = (),
    command: Command | None = None,
    cancelled_when: asyncio.Event | None = None,
    saved_step: int | None = None,
    keeper: Any | None = None,
) -> JobRecord:
    """Runs a job to its end.

    Args:
        before: what is on record of earlier attempts.
        command: that it runs; None: it runs a workload.
        cancelled_when: it is cancelled when this is set.
        saved_step: its newest checkpoint, by its record.
        keeper: of the head, where its hosts share no storage.
    """
    spec = dataclasses.replace(job_spec(), command=command)
    job_folder = JobFolder.create(spec, "laptop")
    for event in before:
        job_folder.append("events.jsonl", {"at": 0.0, **event})
    job_folder.write_job(job_folder.job() | {"checkpoint_step": saved_step})
    record = JobRecord(spec, job_folder, str(folder / "storage"))
    record.enqueue()

    async def program() -> None:
        job = JobRun(record, _cluster(), Authority.open(folder, "laptop-1"), keeper)
        pool = HostPool(dict(zip(HOSTS, (InProcess(agent) for agent in agents), strict=True)))
        pool.take(record.spec.name, HOSTS)
        running = asyncio.ensure_future(job.run(HOSTS, pool, BlobStore(folder / "blobs")))
        if cancelled_when is not None:
            await asyncio.wait_for(cancelled_when.wait(), 60.0)
            job.cancel("cancelled by the test")
        await asyncio.wait_for(running, 60.0)
        await record.mirrored()
        record.close()

    asyncio.run(program())
    return record


class HostThatKeepsNothing(HostAgent):
    """The first so many times that it is asked what it has, it stands still for a while, or fails."""

    def __init__(self, times: int, error: Exception | None = None, stands_s: float = 600.0):
        super().__init__()
        self._times = times
        self._error = error
        self._stands_s = stands_s
        self._stands_until = 0.0
        self.asked = asyncio.Event()

    async def has(self, digests: Sequence[str]) -> Sequence[str]:
        self._times -= 1
        self.asked.set()
        if self._times < 0:
            return digests
        if self._error is not None:
            raise self._error
        self._stands_until = time.monotonic() + self._stands_s
        await asyncio.sleep(self._stands_s)
        return digests

    async def clock(self) -> float:
        await asyncio.sleep(self._stands_until - time.monotonic())
        return 0.0


def test_results_that_cannot_be_fetched_are_told_as_what_they_are(tmp_path: Path) -> None:
    record = run(tmp_path, [HostAgent(losses=1), HostAgent()])
    (note,) = record.notes
    assert note.startswith("rank 0 on host laptop-0 was lost after its end, before its results were fetched: ")
    assert "attempt 2 starts from step 0" in note
    (end,) = [event for event in record.folder.lines("events.jsonl") if event["type"] == "attempt-failed"]
    assert end["cause"] == "preempted"
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)


def test_an_agent_that_stands_still_keeps_no_job_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.collect.PIECE_TIMEOUT_S", 0.2)
    record = run(tmp_path, [HostAgent(losses=1, stands=True), HostAgent()])
    (note,) = record.notes
    assert note.startswith("rank 0 on host laptop-0 was lost after its end, before its results were fetched: ")
    assert "its agent did not send the list of its files within 0.2 s" in note
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)


@pytest.mark.parametrize(("exit_event", "asked"), [({"code": 3}, 1), ({"code": -9, "lost": "by the network"}, 0)])
def test_a_failed_commands_files_are_fetched_unless_its_host_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_event: Message, asked: int
) -> None:
    monkeypatch.setattr("launcher.collect.PIECE_TIMEOUT_S", 0.2)
    command = Command(words=["train"])
    fails = HostAgent(losses=99, stands=True, ends=[{"type": "exit", **exit_event}])
    monkeypatch.setattr("launcher.job_run.decide", lambda *_, **__: Stop(why="enough"))
    record = run(tmp_path, [fails, HostAgent()], command=command)
    assert record.state is JobState.FAILED and "rank 0 on host laptop-0" in record.message
    assert 99 - fails._losses == asked
    said = [note for note in record.notes if "could not be fetched: all files (TimeoutError: its agent did not" in note]
    assert len(said) == asked and all(note.endswith("until the cluster goes down, in /host/left") for note in said)


class LeavesFiles(HostAgent):
    """Its rank has left files, of which one cannot be read."""

    def __init__(self, *, ends: Sequence[Message] = (RESULT, EXIT)):
        super().__init__(ends=ends)
        self.fetched: Sequence[str] = ()

    async def collect(self, attempt_id: str) -> LeftFiles:
        return LeftFiles(files={"results/bad": 1, "results/good": 4}, unreadable={"results/pipe": "a named pipe"})

    async def read(self, attempt_id: str, path: str, offset: int, length: int) -> bytes:
        if path == "results/bad":
            raise OSError(errno.EIO, "Input/output error")
        return b"good"

    async def keep_output(self, attempt_id: str, fetched: Sequence[str]) -> str:
        self.fetched = fetched
        return "/host/left"


@pytest.mark.parametrize("code", [0, 3])
def test_a_file_that_cannot_be_read_repeats_no_command_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("launcher.job_run.decide", lambda *_, **__: Stop(why="enough"))
    ends = [RESULT, EXIT] if code == 0 else [{"type": "exit", "code": code}]
    agent = LeavesFiles(ends=ends)
    record = run(tmp_path, [agent, HostAgent()], command=Command(words=["train"]))
    assert record.state is (JobState.SUCCEEDED if code == 0 else JobState.FAILED)
    (note,) = [note for note in record.notes if "could not be fetched" in note]
    assert note == (
        "rank 0 on host laptop-0: could not be fetched: results/pipe (a named pipe), results/bad (Input/output error); "
        "what is there stays on the host until the cluster goes down, in /host/left"
    )
    assert (record.folder.path / "results" / "good").read_bytes() == b"good" and agent.fetched == ["results/good"]
    assert not (record.folder.path / "results" / "bad").exists()
    (event,) = [event for event in record.folder.lines("events.jsonl") if event["type"] == "files-left"]
    assert event["files"] == {"results/pipe": "a named pipe", "results/bad": "Input/output error"}
    assert (event["host"], event["folder"], event["num_files"]) == ("laptop-0", "/host/left", 2)
    assert record.attempt == 1


@pytest.mark.parametrize(("agent_answers", "attempts"), [(True, 1), (False, 2)])
def test_a_command_whose_files_cannot_be_listed_is_repeated_only_if_its_host_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent_answers: bool, attempts: int
) -> None:
    monkeypatch.setattr("launcher.collect.PIECE_TIMEOUT_S", 0.2)
    agent = HostAgent(losses=1, stands=True)
    if not agent_answers:
        monkeypatch.setattr(agent, "clock", lambda: asyncio.sleep(1.0, 0.0))
    record = run(tmp_path, [agent, HostAgent()], command=Command(words=["train"]))
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, attempts)
    (note,) = record.notes
    assert ("could not be fetched: all files (TimeoutError: its agent did not send the list" in note) == agent_answers
    assert note.endswith("; attempt 2 runs the command again") != agent_answers


def test_a_full_disk_on_the_head_repeats_no_command(tmp_path: Path) -> None:
    agent = LeavesFiles()

    async def read(attempt_id: str, path: str, offset: int, length: int) -> bytes:
        filled.enter_context(full_disk(2))
        return b"good"

    with contextlib.ExitStack() as filled, pytest.MonkeyPatch.context() as patched:
        patched.setattr(agent, "read", read)
        record = run(tmp_path, [agent, HostAgent()], command=Command(words=["train"]))
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1) and agent.fetched == []
    assert any("results/good (the head cannot write it: File too large)" in note for note in record.notes)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("503 of the bucket")])
def test_a_storage_that_refuses_for_a_moment_fails_one_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    refusals = [error]

    def refuse_once(storage: str, attempt: int, attempt_id: str) -> None:
        if refusals:
            raise refusals.pop()
        write_fence(storage, attempt, attempt_id)

    monkeypatch.setattr("launcher.attempt_fence.write_fence", refuse_once)
    monkeypatch.setattr("launcher.job_run.STORAGE_PAUSE_S", 0.5)
    began = time.monotonic()
    record = run(tmp_path, [HostAgent(), HostAgent()])
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)
    assert time.monotonic() - began >= 0.5
    (note,) = record.notes
    said = f"attempt 1 could not begin, as the storage {tmp_path / 'storage'} cannot be read or written: "
    assert (
        note.startswith(said + type(error).__name__) and str(error) in note and "attempt 2 starts from step 0" in note
    )
    (end,) = [event for event in record.folder.lines("events.jsonl") if event["type"] == "attempt-failed"]
    assert end["cause"] == "failure"


def test_a_job_is_cancelled_while_its_storage_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    back, cancelled = threading.Event(), asyncio.Event()
    request.addfinalizer(back.set)
    cancelled.set()
    monkeypatch.setattr("launcher.attempt_fence.write_fence", lambda *_: back.wait())
    record = run(tmp_path, [HostAgent(), HostAgent()], cancelled_when=cancelled)
    assert (record.state, record.message) == (JobState.CANCELLED, "cancelled by the test")


def test_a_storage_that_goes_on_refusing_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.job_run.STORAGE_PAUSE_S", 0.0)
    (tmp_path / "storage").write_text("no folder")
    record = run(tmp_path, [HostAgent(), HostAgent()])
    assert record.state is JobState.FAILED and str(tmp_path / "storage") in record.message
    assert "the launcher failed" not in record.message and record.attempt == 3


def test_a_job_whose_checkpoints_are_out_of_sight_starts_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.job_run.STORAGE_PAUSE_S", 0.0)
    record = run(tmp_path, [HostAgent(), HostAgent()], saved_step=30)
    assert record.state is JobState.FAILED and record.checkpoint_step == 30
    said = f"the job has saved step 30 under {tmp_path / 'storage'}, and the head finds no checkpoint there"
    assert said in record.message and "submit it anew" in record.message
    assert not list(record.folder.lines("metrics.jsonl")) and not (tmp_path / "storage" / "fence.json").exists()


def test_results_that_the_head_cannot_write_fail_an_attempt_with_the_reason(tmp_path: Path) -> None:
    class FillsTheDisk(HostAgent):
        async def collect(self, attempt_id: str) -> LeftFiles:
            (results,) = tmp_path.rglob("results")
            if results.is_dir():
                results.rename(results.with_name("aside"))
                results.touch()  # nothing can be written below it
            return LeftFiles()

    record = run(tmp_path, [FillsTheDisk(), HostAgent()])
    assert record.state is JobState.FAILED and "the launcher failed" not in record.message
    assert record.message.startswith("the results cannot be written on the head: [Errno ")


def test_a_job_whose_record_cannot_be_written_runs_to_its_end(tmp_path: Path) -> None:
    class FillsTheDisk(HostAgent):
        async def has(self, digests: Sequence[str]) -> Sequence[str]:
            filled.enter_context(full_disk(400))  # a result has room, and the fence; the record has not
            return digests

    with contextlib.ExitStack() as filled:
        record = run(tmp_path, [FillsTheDisk(), HostAgent()])
    assert (record.state, record.attempt, record.message) == (JobState.SUCCEEDED, 1, "")
    assert any(note.startswith("the head cannot write the job's record: ") for note in record.notes)
    assert JobFolder(record.folder.path).state() is not JobState.SUCCEEDED
    assert record.writer.write_late() == "" and JobFolder(record.folder.path).state() is JobState.SUCCEEDED
    record.close()


def test_a_host_that_stands_still_before_its_rank_can_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.host_wait.SILENT_S", 0.3)
    record = run(tmp_path, [HostAgent(), HostThatKeepsNothing(1, stands_s=1.0)])
    (note,) = record.notes
    named = "before the ranks could start, host laptop-1 was lost: its agent has not answered for 0.3 s"
    assert note.startswith(f"{named}; attempt 2 starts from step 0: no checkpoint")
    (end,) = [event for event in record.folder.lines("events.jsonl") if event["type"] == "attempt-failed"]
    assert end["cause"] == "preempted"
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)


def test_a_host_that_cannot_keep_the_code_ends_the_job_at_last(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    record = run(tmp_path, [HostAgent(), HostThatKeepsNothing(99, full)])
    assert record.state is JobState.FAILED and record.attempt == 3
    assert record.message.startswith("before the ranks could start, host laptop-1: OSError: ")
    assert "No space left on device" in record.message


def test_a_job_is_cancelled_while_its_code_is_brought(tmp_path: Path) -> None:
    host = HostThatKeepsNothing(1)
    began = time.monotonic()
    record = run(tmp_path, [HostAgent(), host], cancelled_when=host.asked)
    assert record.state is JobState.CANCELLED and time.monotonic() - began < 10.0


def test_what_a_replay_tells_counts_once_however_often_the_step_is_checked(tmp_path: Path) -> None:
    told = [{"type": "replayed", "step": 30, "digests": {"w": digest}} for digest in ("a", "b")]
    copies = {"leaf": "w", "index": "", "groups": [["laptop-0/cpu:0"], ["laptop-1/cpu:2"]], "digests": ["a", "b"]}
    before = [attempt(*HOSTS), diverged({**copies, "culprits": []}), {**failed(), "step": 30, "suspects": []}]
    record = run(tmp_path, [HostAgent(*told), HostAgent()], before)
    assert record.state is JobState.SUCCEEDED, record.message
    (note,) = record.notes
    assert note.endswith("the copy of w on cpu:2 (rank 1, host laptop-1) was wrong")


LOST_PORT = ({"type": "port-lost", "why": "127.0.0.1:4711 is taken"}, {"type": "exit", "code": 1})
FAILS = ({"type": "exit", "code": 3},)


class HostOfManyAttempts(HostAgent):
    """Its rank ends otherwise in each attempt."""

    def __init__(self, attempts: Sequence[Sequence[Message]]):
        super().__init__()
        self._attempts = list(attempts)

    async def start(self, task: Any) -> int:
        self._news = dataclasses.replace(self._news, events=self._attempts.pop(0))
        return await super().start(task)


@pytest.mark.parametrize(
    ("attempts", "state"),
    [
        ([LOST_PORT] * 4, JobState.SUCCEEDED),
        ([*[LOST_PORT] * 4, FAILS, *[LOST_PORT] * 4], JobState.SUCCEEDED),
        ([LOST_PORT] * 5, JobState.FAILED),
    ],
)
def test_lost_ports_cost_no_budget_but_not_too_many_in_a_row(
    tmp_path: Path, attempts: Sequence[Sequence[Message]], state: JobState
) -> None:
    good = ({"type": "joined"}, RESULT, EXIT)
    record = run(tmp_path, [HostOfManyAttempts([*attempts, good]), HostAgent()])
    assert record.state is state, record.message
    lost = [event for event in record.folder.lines("events.jsonl") if event["type"] == "port-lost"]
    assert len(lost) == attempts.count(LOST_PORT)
    assert all(event["why"] == "127.0.0.1:4711 is taken" for event in lost)
