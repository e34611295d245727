"""What clients are told of hosts of which one is lost, and of an agent that cannot do what it is asked."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from launcher import host_report
from launcher.attempt import HostFacts
from launcher.blobs import BlobStore
from launcher.errors import FailureError
from launcher.host_pool import HostPool
from tests.launcher.in_process import InProcess


class Here:
    """An agent that answers, and fails at whatever takes a disk."""

    def __init__(self, host: str):
        self.host = host

    async def clock(self) -> float:
        return 5.0

    async def facts(self) -> HostFacts:
        return HostFacts(
            host=self.host, versions={}, code_digest="", flags={}, num_devices=1, device_kind="cpu", hostname="h",
            resolves_to="-", clock=0.0,
        )  # fmt: skip

    async def has(self, digests: list[str]) -> list[str]:
        return digests

    async def has_uv(self) -> bool:
        return True

    async def inspect(self, *_: Any) -> None:
        raise OSError("no space left")

    async def lock_requirements(self, *_: Any) -> None:
        raise OSError("no space left")

    async def execute(self, *_: Any) -> None:
        raise OSError("no space left")


class Lost:
    """The handle of an agent whose host is gone: Ray may take minutes to say so."""

    def __getattr__(self, name: str) -> "Lost":
        return self

    async def remote(self, *_: Any) -> None:
        await asyncio.sleep(300.0)
        raise RayActorError


def ask(folder: Path, request: dict[str, Any], *lost: str) -> dict[str, Any]:
    hosts = {host: Lost() if host in lost else InProcess(Here(host)) for host in ("h0", "h1")}
    return asyncio.run(host_report.answer(HostPool(hosts), BlobStore(folder), request))


def test_facts_are_those_of_the_hosts_that_answer(tmp_path: Path) -> None:
    began = time.monotonic()
    answer = ask(tmp_path, {"op": "facts"}, "h1")
    assert [fact["host"] for fact in answer["facts"]] == ["h0"] and answer["lost"] == ["h1"]
    assert time.monotonic() - began < 30.0
    assert ask(tmp_path, {"op": "facts"})["lost"] == []
    assert ask(tmp_path, {"op": "facts"}, "h0", "h1")["facts"] == []


def test_sockets_are_not_told_where_a_host_is_lost_whom_a_firewall_must_let_in(tmp_path: Path) -> None:
    with pytest.raises(FailureError, match="host h1 does not answer: `spmd-launch up FILE`"):
        ask(tmp_path, {"op": "sockets"}, "h1")


def test_an_agent_that_fails_is_not_taken_for_a_lost_host(tmp_path: Path) -> None:
    look = {"op": "inspect", "folder": None, "requirements": None, "code": "c", "every_host": False,
            "workload": "w", "settings": None, "num_hosts": 1, "devices_per_host": 1}  # fmt: skip
    BlobStore(tmp_path).put("c", b"", is_file=False)
    with pytest.raises(FailureError, match="host h0 could not look at the workload: OSError: no space left"):
        ask(tmp_path, look)
    lock = {"op": "lock", "requirements": {}, "variables": {}, "beneath": False}
    with pytest.raises(FailureError, match="host h0 could not resolve it: OSError: no space left"):
        ask(tmp_path, lock)
    run = {"op": "exec", "host": "h1", "words": ["true"], "timeout_s": 1.0}
    assert "could not run it: OSError: no space left" in ask(tmp_path, run)["hosts"][0]["error"]
