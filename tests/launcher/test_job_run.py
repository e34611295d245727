"""The life of one job: what the launcher makes of odd ends. Agents without Ray; see `test_recovery` for real."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from launcher.blobs import BlobStore
from launcher.certificates import Authority
from launcher.host_pool import HostPool
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.job_record import JobRecord
from launcher.job_run import JobRun
from launcher.rank_process import Message
from tests.cluster.test_record import _cluster
from tests.conftest import job_spec
from tests.launcher.in_process import InProcess
from tests.launcher.test_gang import RankAgent
from tests.launcher.test_replay import attempt, diverged, failed

pytestmark = pytest.mark.usefixtures("state_folder")

HOSTS = ["laptop-0", "laptop-1"]
RESULT = {"type": "result", "metrics": {}, "diagnostics": {}, "result_digest": "d"}
EXIT = {"type": "exit", "code": 0}


class HostAgent(RankAgent):
    """The agent of a host whose ranks succeed; it is lost to so many who ask for their results."""

    def __init__(self, *events: Message, losses: int = 0):
        super().__init__({"type": "joined"}, *events, RESULT, EXIT)
        self._losses = losses

    async def has(self, digests: Sequence[str]) -> Sequence[str]:
        return digests

    async def collect(self, attempt_id: str) -> dict[str, int]:
        self._losses -= 1
        if self._losses >= 0:
            raise ActorUnavailableError("the network is cut", None)
        return {}

    async def clock(self) -> float:
        return 0.0

    async def fill_standby(self) -> None: ...

    async def forget(self, attempt_id: str) -> None: ...


def run(folder: Path, agents: Sequence[Any], before: Sequence[Message] = ()) -> JobRecord:
    """Runs a job to its end.

    Args:
        before: what is on record of earlier attempts.
    """
    job_folder = JobFolder.create(job_spec(), "laptop")
    for event in before:
        job_folder.append("events.jsonl", {"at": 0.0, **event})
    record = JobRecord(job_spec(), job_folder, str(folder / "storage"))
    record.enqueue()

    async def program() -> None:
        job = JobRun(record, _cluster(), Authority.open(folder, "laptop-1"))
        pool = HostPool(dict(zip(HOSTS, (InProcess(agent) for agent in agents), strict=True)))
        pool.take(record.spec.name, HOSTS)
        await asyncio.wait_for(job.run(HOSTS, pool, BlobStore(folder / "blobs")), 60.0)
        await record.mirrored()

    asyncio.run(program())
    return record


def test_results_that_cannot_be_fetched_are_told_as_what_they_are(tmp_path: Path) -> None:
    record = run(tmp_path, [HostAgent(losses=1), HostAgent()])
    (note,) = record.notes
    assert note.startswith("rank 0 on host laptop-0 was lost after its end, before its results were fetched: ")
    assert "attempt 2 starts from step 0" in note
    (end,) = [event for event in record.folder.lines("events.jsonl") if event["type"] == "attempt-failed"]
    assert end["cause"] == "preempted"
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)


def test_what_a_replay_tells_counts_once_however_often_the_step_is_checked(tmp_path: Path) -> None:
    told = [{"type": "replayed", "step": 30, "digests": {"w": digest}} for digest in ("a", "b")]
    copies = {"leaf": "w", "index": "", "groups": [["laptop-0/cpu:0"], ["laptop-1/cpu:2"]], "digests": ["a", "b"]}
    before = [attempt(*HOSTS), diverged({**copies, "culprits": []}), {**failed(), "step": 30, "suspects": []}]
    record = run(tmp_path, [HostAgent(*told), HostAgent()], before)
    assert record.state is JobState.SUCCEEDED, record.message
    (note,) = record.notes
    assert note.endswith("the copy of w on cpu:2 (rank 1, host laptop-1) was wrong")
