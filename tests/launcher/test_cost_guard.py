"""The guard in one process: what it keeps, whom it warns, and what it lets be done when the end has begun."""

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.delete_from_head import delete_what_costs
from cluster.farewell import Farewell, forget, kept_farewell, known_names
from cluster.record import Cluster
from cluster.spec import LocalProviderSpec
from launcher import self_down
from launcher.cli.age import describe_waiting
from launcher.cost_guard import CostGuard
from launcher.errors import UserError
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.job_record import JobRecord
from launcher.job_run import JobRun
from launcher.limits import Reason
from launcher.self_down import way_on
from tests.cluster.test_record import _cluster, _save
from tests.conftest import ROOT, job_spec

pytestmark = pytest.mark.usefixtures("state_folder")


class Job:
    """A job that has a record and nothing that runs."""

    def __init__(self, name: str, storage: str, state: JobState = JobState.RUNNING):
        self.spec = job_spec(name)
        self.record = JobRecord(self.spec, JobFolder.create(self.spec, "laptop"), storage)
        self.record.enqueue()
        self.record.state = state
        self.moves = None


@pytest.fixture
def limited() -> Cluster:
    """One that goes down after 5 s without a job or a minute after up."""
    plain = _cluster()
    spec = dataclasses.replace(plain.spec, idle_down_after="5s", max_lifetime="1m")
    cluster = dataclasses.replace(plain, spec=spec)
    _save(cluster)
    return cluster


def guard_of(cluster: Cluster, jobs: Mapping[str, Any] | None = None) -> CostGuard:
    async def cancel(name: str, why: str) -> None:
        raise AssertionError("nothing is to be cancelled here")

    return CostGuard(cluster, {}, jobs or {}, cancel)


async def look(guard: CostGuard, seconds: float = 0.1) -> dict[str, Any]:
    """Its state after a while; the cluster is up."""
    guard.begin()
    watching = asyncio.ensure_future(guard.watch())
    await asyncio.sleep(seconds)
    watching.cancel()
    return guard.state()


def test_a_supervisor_that_is_started_again_does_not_begin_to_count_anew(limited: Cluster) -> None:
    began = time.monotonic()
    asyncio.run(look(guard_of(limited)))
    path = limited.folder / "guard.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"up_since": kept["up_since"] - 30, "idle_since": kept["idle_since"] - 2}))
    state = asyncio.run(look(guard_of(limited)))
    took_s = time.monotonic() - began + 0.1  # they are rounded
    assert 2 <= state["idle_s"] <= 2 + took_s and 3 - took_s <= state["ends_in_s"] <= 3
    assert state["ends_by"] == "idle_down_after"
    assert json.loads(path.read_text())["up_since"] == kept["up_since"] - 30


def test_while_it_comes_up_it_is_not_idle_and_does_not_end(limited: Cluster) -> None:
    guard = guard_of(limited)
    assert guard.state()["idle_s"] == 0.0 and guard.state()["ends_by"] == "max_lifetime"
    guard._keep(type(guard._clock)(up_since=time.monotonic() - 600, idle_since=None, warned={Reason.LIFETIME: 0.0}))

    async def watch() -> str:
        watching = asyncio.ensure_future(guard.watch())
        await asyncio.sleep(0.1)
        going_down: str = guard.state()["going_down"]
        watching.cancel()
        return going_down

    assert asyncio.run(watch()) == ""
    guard.begin()
    assert asyncio.run(watch()) == "1m after `up` (max_lifetime)"


def test_a_request_that_works_keeps_it_up_and_one_that_looks_does_not(limited: Cluster) -> None:
    async def ask(op: str) -> dict[str, Any]:
        guard = guard_of(limited)
        guard._keep(type(guard._clock)(up_since=time.monotonic(), idle_since=time.monotonic() - 3))
        with guard.request(op):
            return await look(guard)

    assert asyncio.run(ask("exec"))["idle_s"] == 0.0
    assert asyncio.run(ask("status"))["idle_s"] >= 3.0


def test_a_job_keeps_it_up_and_is_warned_of_the_end_of_its_lifetime(limited: Cluster, tmp_path: Path) -> None:
    async def run() -> tuple[dict[str, Any], list[str]]:
        job = Job("j", str(tmp_path))
        guard = guard_of(limited, {"j": job})
        guard._keep(type(guard._clock)(up_since=time.monotonic() - 35, idle_since=None))
        state = await look(guard, 1.2)  # three looks, one warning
        job.record.close()
        return state, job.record.notes

    state, notes = asyncio.run(run())
    assert (state["idle_s"], state["ends_by"]) == (0.0, "max_lifetime") and 23 < state["ends_in_s"] < 30
    (note,) = notes
    assert "goes down at " in note and "1m after `up` (max_lifetime)" in note
    assert note.endswith(
        "`spmd-launch submit --resume j` goes on from its last checkpoint, on any cluster that reaches its storage"
    )
    assert state["warning"] and note.startswith("cluster laptop goes down at ")


def test_a_job_that_waits_for_lost_hosts_does_not_keep_it_up_beside_none_that_runs(
    limited: Cluster, tmp_path: Path
) -> None:
    waits, runs = Job("waits", str(tmp_path), JobState.QUEUED), Job("runs", str(tmp_path))
    guard = guard_of(limited, {"waits": waits, "runs": runs})
    assert asyncio.run(look(guard))["waiting"] == []
    runs.record.state = JobState.SUCCEEDED
    state = asyncio.run(look(guard))
    assert (state["ends_by"], state["waiting"]) == ("idle_down_after", ["waits"])
    assert describe_waiting(state) == ["! waits for hosts that are lost, which counts as no job: waits"]
    with guard.request("mend"):  # a client brings hosts back
        assert asyncio.run(look(guard))["idle_s"] == 0.0
    for job in (waits, runs):
        job.record.close()


def test_what_becomes_of_a_job_depends_on_where_its_checkpoints_are(
    limited: Cluster, state_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, near = Job("far", "gs://b/far.b7"), Job("near", str(state_folder / "storage" / "near.b7"))
    far.record.checkpoint_step = 40
    assert way_on(far.record, limited.spec).startswith("`spmd-launch submit --resume far` goes on from step 40, on any")
    assert "starts it again, on any cluster" in way_on(near.record, limited.spec)
    monkeypatch.setattr(LocalProviderSpec, "shares_disk", False)
    assert way_on(near.record, limited.spec).endswith("on cluster laptop when it is up again")
    monkeypatch.setattr(LocalProviderSpec, "is_paid", True)
    lost = way_on(near.record, limited.spec, before=True)
    assert "is deleted with it: nothing of the job is left" in lost and "--resume" not in lost
    assert "--resume far" in way_on(far.record, limited.spec, before=True)
    for job in (far, near):
        job.record.close()


def test_a_job_is_ended_after_a_new_commit_not_where_an_attempt_begins(
    limited: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_down, "COMMIT_PERIOD_S", 0.01)
    job = Job("runs", str(tmp_path))
    ended: list[int | None] = []
    job.record.checkpoint_step = 40

    async def cancel(name: str, why: str) -> None:
        ended.append(job.record.checkpoint_step)

    async def run() -> None:
        down = self_down.SelfDown(limited, {}, "after 5s without a job")
        saving = asyncio.ensure_future(down._save_and_cancel(cast(JobRun, job), cancel, time.monotonic() + 30.0))
        for step in (20, 30):  # the step of 40 was damaged; a commit
            await asyncio.sleep(0.1)
            job.record.checkpoint_step = step
        await saving

    asyncio.run(run())
    assert ended == [30]
    job.record.close()


def test_who_cannot_delete_what_costs_money_says_so_and_tries_again(
    limited: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion is a process of its own, whose cluster is paid for and whose provider has no cloud."""
    monkeypatch.setattr(self_down, "PAUSES_S", (0.01, 0.01))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    down = self_down.SelfDown(limited, {}, "after 5s without a job")
    answers = iter(["permission denied for us: grant it", "permission denied for us: grant it", ""])
    looked = threading.Event()

    def act() -> str:
        answer = next(answers)
        assert answer or looked.wait(60.0), "the problem is over only when it was looked at"
        return answer

    async def run() -> list[str]:
        ending = asyncio.ensure_future(down._again_and_again(act))
        async with asyncio.timeout(60.0):
            while not down.problem:
                await asyncio.sleep(0.01)
        seen = [down.problem]
        looked.set()
        await ending
        return [*seen, down.problem]

    assert asyncio.run(run()) == ["permission denied for us: grant it", ""]
    assert delete_what_costs("laptop") == ""  # the real process, with a provider that has nothing to delete
    (limited.folder / "cluster.json").unlink()
    assert delete_what_costs("laptop") == "there is no record of cluster 'laptop' here"


def test_a_cluster_that_goes_down_takes_no_more_work(limited: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = guard_of(limited)
    guard._self_down = self_down.SelfDown(limited, {}, "after 5s without a job")
    with pytest.raises(UserError, match="cluster laptop goes down, after 5s without a job"), guard.request("submit"):
        raise AssertionError("nothing may be begun")
    with guard.request("status"):
        assert guard.state()["going_down"] == "after 5s without a job"


def test_last_words_are_those_of_one_cluster_and_are_forgotten_when_another_is_up(limited: Cluster) -> None:
    said = Farewell(
        name="laptop", cluster_id=limited.cluster_id, ended="2026-11-22T08:25:08+00:00", why="after 5s without a job",
        jobs={"j": {"state": JobState.CANCELLED, "message": "m"}}, left=("host b could not be told",),
    )  # fmt: skip
    said.save()
    assert Farewell.load("laptop") == said == kept_farewell("laptop")
    assert str(said).startswith("cluster laptop took itself down at ")
    assert str(said).endswith(", after 5s without a job\n  host b could not be told")
    Farewell(**{**vars(said), "cluster_id": "another"}).save()
    assert kept_farewell("laptop") is None  # of an earlier one, and this one is up
    guard_of(limited)
    assert Farewell.load("laptop") is None and known_names() == ["laptop"]
    forget("laptop")
