"""Profiles of a few steps: which ones, by JAX's real profiler, and what comes of them in the record."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from launcher.errors import UserError
from launcher.job import JobState
from launcher.job_folder import JobFolder
from launcher.job_record import JobRecord
from launcher.left_files import LeftFiles, list_files
from launcher.profile_steps import ProfileSteps
from launcher.profiles import Profiles
from launcher.rank.profile import StepProfiler
from tests.conftest import job_spec
from tests.launcher.in_process import InProcess

Message = dict[str, Any]
PLACE = "plugins/profile/attempt-1"


@pytest.mark.parametrize(("text", "ends"), [
    ("20:25", {19: None, 20: 25, 24: 25, 25: None}),
    ("0:1", {0: 1, 1: None}),
    ("5", {0: 5, 20: 25}),
])  # fmt: skip
def test_the_steps_of_a_profile(text: str, ends: dict[int, int | None]) -> None:
    steps = ProfileSteps.parse(text)
    assert {step: steps.end_of(step) for step in ends} == ends


@pytest.mark.parametrize("text", ["", "0", "5:5", "6:5", "a:b", "5:", ":5", "-1:5", "1.5", "5:6:7"])
def test_steps_that_are_none_are_refused_in_words(text: str) -> None:
    with pytest.raises(UserError, match="--profile"):
        ProfileSteps.parse(text)


def compute_and_report(profiler: StepProfiler, steps: range) -> None:
    for step in steps:
        jax.block_until_ready(jnp.ones(8) @ jnp.ones(8))
        profiler.hear({"type": "phase", "phase": "run"})
        profiler.hear({"type": "report", "step": step, "total": 100, "metrics": {}})


def kinds(events: list[Message]) -> list[str]:
    return [event["type"] for event in events if event["type"] != "phase"]


def test_a_rank_profiles_the_steps_asked_for_and_names_the_file_after_its_host(tmp_path: Path) -> None:
    events: list[Message] = []
    later = [{"type": "profile", "session": "attempt-1-asked-1", "steps": "2"}]
    profiler = StepProfiler(
        tmp_path,
        "lab-1",
        events.append,
        first={"session": "attempt-1", "steps": "2:4"},
        asked=lambda: later.pop() if later and len(events) > 4 else None,
    )
    compute_and_report(profiler, range(1, 4))
    assert kinds(events) == []  # under way
    compute_and_report(profiler, range(4, 6))
    profiler.finish()  # the second one is cut short
    first, second = (event for event in events if event["type"] == "profile")
    assert first == {"type": "profile", "session": "attempt-1", "first": 3, "last": 4, "files": first["files"]}
    assert (second["session"], second["first"], second["last"]) == ("attempt-1-asked-1", 5, 5)
    assert f"{PLACE}/lab-1.xplane.pb" in first["files"]
    assert all((tmp_path / file).stat().st_size > 0 for file in [*first["files"], *second["files"]])
    assert {path.name.partition(".")[0] for path in (tmp_path / PLACE).iterdir()} == {"lab-1"}
    assert all(event["aside"] for event in events if event["type"] == "phase")
    planes = jax.profiler.ProfileData.from_file(str(tmp_path / PLACE / "lab-1.xplane.pb")).planes
    assert any(line.events for plane in planes for line in plane.lines)


def test_a_workload_that_profiles_itself_goes_on_and_it_is_told(tmp_path: Path) -> None:
    events: list[Message] = []
    profiler = StepProfiler(tmp_path / "ours", "lab-1", events.append, first={"session": "attempt-1", "steps": "1"})
    with jax.profiler.trace(tmp_path / "own"):
        compute_and_report(profiler, range(1, 4))
    profiler.finish()
    (failed,) = (event for event in events if event["type"] == "profile-failed")
    assert failed["session"] == "attempt-1" and failed["why"]
    assert kinds(events) == ["profile-failed"]


def test_a_profile_of_steps_that_do_not_come_is_never_begun(tmp_path: Path) -> None:
    events: list[Message] = []
    profiler = StepProfiler(tmp_path, "lab-1", events.append, first={"session": "attempt-1", "steps": "50:60"})
    compute_and_report(profiler, range(1, 4))
    compute_and_report(profiler, range(70, 72))
    profiler.finish()
    assert events == [] and not (tmp_path / "plugins").exists()


class FolderAgent:
    """An agent whose rank's output is a folder here; None: its host is lost."""

    def __init__(self, output: Path | None):
        self._output = output
        self.told: list[Message] = []

    async def collect(self, attempt_id: str) -> LeftFiles:
        if self._output is None:
            raise ConnectionError("no route to the host")
        return list_files(self._output)

    async def read(self, attempt_id: str, path: str, offset: int, length: int) -> bytes:
        assert self._output is not None
        return (self._output / path).read_bytes()[offset : offset + length]

    async def tell(self, attempt_id: str, message: Message) -> None:
        self.told.append(message)


def new_record(storage: Path) -> JobRecord:
    spec = dataclasses.replace(job_spec(), profile="2:4")
    record = JobRecord(spec, JobFolder.create(spec, "laptop"), str(storage))
    record.hosts, record.attempt = ("lab-0", "lab-1"), 1
    return record


def profile_event(host: str) -> Message:
    return {"type": "profile", "session": "attempt-1", "first": 3, "last": 4, "files": [f"{PLACE}/{host}.xplane.pb"]}


@pytest.mark.usefixtures("state_folder")
def test_profiles_of_all_ranks_come_into_the_record_and_nothing_else_does(tmp_path: Path) -> None:
    agents = [FolderAgent(tmp_path / host) for host in ("lab-0", "lab-1")]
    for host in ("lab-0", "lab-1"):
        (tmp_path / host / PLACE).mkdir(parents=True)
        (tmp_path / host / PLACE / f"{host}.xplane.pb").write_text(host)
        (tmp_path / host / "half-written.npz").write_text("")
    record = new_record(tmp_path / "storage")

    async def fetch() -> Message:
        profiles = Profiles(record)
        with pytest.raises(UserError, match="is QUEUED: only steps of a job that is RUNNING"):
            await profiles.ask(5)
        record.state = JobState.RUNNING
        profiles.begin_attempt("job.1.0", [InProcess(agent) for agent in agents])
        for rank, host in enumerate(("lab-0", "lab-1")):
            profiles.fetch(rank, profile_event(host))
        await profiles.settle()
        return await profiles.ask(5)

    assert not record.has_profile()
    assert asyncio.run(fetch()) == {"session": "attempt-1-asked-1", "ranks": 2}
    assert record.has_profile()
    assert [(record.folder.path / PLACE / f"{host}.xplane.pb").read_text() for host in record.hosts] == [
        "lab-0",
        "lab-1",
    ]
    assert not (record.folder.path / "half-written.npz").exists()
    (note,) = record.notes
    assert note.startswith("profile of steps 3 to 4: ")
    assert [agent.told for agent in agents] == 2 * [[{"type": "profile", "session": "attempt-1-asked-1", "steps": "5"}]]
    record.folder.close()


@pytest.mark.usefixtures("state_folder")
def test_a_profile_that_is_lost_with_its_host_ends_nothing_and_is_told(tmp_path: Path) -> None:
    record = new_record(tmp_path / "storage")

    async def fetch() -> None:
        profiles = Profiles(record)
        profiles.begin_attempt("job.1.0", [InProcess(FolderAgent(None))])
        profiles.fetch(0, profile_event("lab-0"))
        await profiles.settle()
        record.state = JobState.RUNNING
        record.end(JobState.CANCELLED, "")
        while not (tmp_path / "storage" / "record" / "job.json").exists():
            await asyncio.sleep(0.01)

    asyncio.run(fetch())
    lost, none = record.notes
    assert "rank 0 on host lab-0 took no profile: it could not be fetched" in lost
    assert none == "--profile 2:4: no profile was taken; the last step reported is 0"
