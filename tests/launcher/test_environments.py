"""All hosts have one environment, or no rank starts."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from launcher.attempt import EnvironmentMade, RankStatus, RankTask, tasks_for
from launcher.command import REQUIREMENTS, Command
from launcher.environments import compare_environments, make_environments
from launcher.first_cause import FirstCause
from launcher.job import InputFile
from launcher.recovery import Cause
from tests.conftest import job_spec
from tests.launcher.in_process import InProcess


class Host:
    """Stands for an agent whose uv ends after a while, or never: then it must be stopped."""

    def __init__(self, made: EnvironmentMade | None):
        self.made = made
        self.stopped = asyncio.Event()

    async def make_environment(self, task: RankTask) -> EnvironmentMade:
        if self.made is None:
            await self.stopped.wait()
        return self.made or EnvironmentMade(error="stopped")

    async def clock(self) -> float:
        return 0.0

    async def making_says(self, attempt_id: str) -> str:
        return "Downloading jaxlib (80.5MiB)"

    async def stop(self, attempt_id: str) -> None:
        self.stopped.set()


def tasks(num_hosts: int, *, requirements: bool = True) -> list[RankTask]:
    spec = job_spec()
    files = {REQUIREMENTS: InputFile(name="requirements.lock", sha256="0", num_bytes=1)} if requirements else {}
    spec = spec.__class__(**{**vars(spec), "files": files, "command": Command(words=("true",))})
    return tasks_for(
        spec,
        1,
        "",
        environments=[{}] * num_hosts,
        devices_per_host=1,
        own_disk=False,
        replay=None,
        secrets={},
        profile=None,
    )


def make(hosts: Sequence[Host], told: list[Any] | None = None, **options: bool) -> FirstCause | None:
    ranks = [RankStatus(rank, f"lab-{rank}") for rank in range(len(hosts))]

    def hear(rank: int, event: dict[str, Any]) -> None:
        if told is not None:
            told.append((rank, event))

    agents = [InProcess(host) for host in hosts]
    return asyncio.run(make_environments(agents, tasks(len(hosts), **options), ranks, hear))


def test_equal_ones_are_told_and_a_job_without_requirements_asks_nobody() -> None:
    told: list[Any] = []
    made = EnvironmentMade(versions={"jax": "0.10.1"}, seconds=2.5)
    assert make([Host(made), Host(made)], told) is None
    assert sorted(rank for rank, event in told if event == {"type": "environment", "packages": 1, "seconds": 2.5}) == [
        0,
        1,
    ]
    assert [event["phase"] for _, event in told if event["type"] == "phase"] == ["environment"] * 2
    assert make([Host(None)], requirements=False) is None


def test_a_host_that_cannot_make_it_is_named_and_the_others_are_stopped() -> None:
    hosts = [Host(None), Host(EnvironmentMade(error="error: Failed to fetch"))]
    refused = make(hosts)
    assert refused is not None and refused.cause is Cause.FAILURE
    assert str(refused) == "host lab-1 cannot make the environment of the job\n\nerror: Failed to fetch"
    assert hosts[0].stopped.is_set()


def test_hosts_that_differ_are_refused_with_the_difference() -> None:
    versions = [{"a": "1", "b": "2"}, {"a": "1", "b": "2"}, {"a": "1.1"}]
    refused = make([Host(EnvironmentMade(versions=own)) for own in versions])
    assert refused is not None and refused.cause is Cause.REFUSED
    assert refused.details.splitlines() == ["a: lab-2 has 1.1, expected 1", "b: lab-2 has none, expected 2"]
    assert compare_environments({"x": {"a": "1"}, "y": {"a": "1"}}) == []


def test_a_cancelled_one_is_stopped_on_every_host() -> None:
    hosts = [Host(None), Host(None)]

    async def begin_and_cancel() -> None:
        ranks = [RankStatus(rank, f"lab-{rank}") for rank in range(2)]
        making = make_environments([InProcess(host) for host in hosts], tasks(2), ranks, lambda rank, event: None)
        running = asyncio.ensure_future(making)
        async with asyncio.timeout(60.0):
            while not all(rank.phase.endswith("jaxlib (80.5MiB)") for rank in ranks):
                await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(begin_and_cancel())
    assert all(host.stopped.is_set() for host in hosts)
