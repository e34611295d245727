"""Hosts that a client brings back: what its word is good for, and who is taken in."""

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayError

from cluster.processes import ProcessId
from cluster.provider import Trouble
from cluster.record import Cluster, Host
from cluster.spec import ClusterSpec, SshProviderSpec
from launcher import host_return
from launcher.attempt import HostFacts
from launcher.blobs import BlobStore
from launcher.errors import FailureError, UserError
from launcher.host_pool import HostPool
from launcher.host_return import HostReturn
from launcher.mend_beside import taken_hosts

NAMES = ("h1", "h2", "h3")


@dataclasses.dataclass
class Agent:
    """What an agent answers, called as Ray's handles are."""

    host: str
    answers: bool = True
    jax: str = "0.10.2"
    told: list[str] = dataclasses.field(default_factory=list)

    def __getattr__(self, name: str) -> "Call":
        return Call(self, name)


@dataclasses.dataclass
class Call:
    agent: Agent
    name: str

    def remote(self, *_: Any) -> Any:
        self.agent.told.append(self.name)
        return None if self.name == "fill_standby" else self._answer()

    async def _answer(self) -> Any:
        if not self.agent.answers:
            raise RayError("lost")
        facts = HostFacts(
            host=self.agent.host, versions={"jax": self.agent.jax}, code_digest="c" * 64, flags={}, num_devices=2,
            device_kind="cpu", hostname="box", resolves_to="127.0.0.1", clock=0.0,
        )  # fmt: skip
        return {"clock": 0.0, "base_code": "c" * 64, "has": ["c" * 64], "facts": facts}[self.name]


def lab() -> Cluster:
    spec = ClusterSpec(name="lab", provider=SshProviderSpec(hosts=NAMES), num_hosts=3, devices_per_host=2)
    hosts = [
        Host(index=k, name=name, node_id=f"{k}", address=f"10.0.0.{k}", folder="/h") for k, name in enumerate(NAMES)
    ]
    return Cluster(
        spec=spec, cluster_id="c1", holder=ProcessId.current(), gcs_address="10.0.0.0:1", run_folder="/tmp/spl-x",
        hosts=tuple(hosts), created="",
    )  # fmt: skip


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> dict[str, Agent]:
    for name in ("LOST_PATIENCE_S", "AGENT_TIMEOUT_S"):
        monkeypatch.setattr(host_return, name, 0.0)
    return {name: Agent(name) for name in NAMES}


def at_home(agents: dict[str, Agent], folder: Path) -> tuple[HostPool, HostReturn]:
    pool = HostPool(agents)
    return pool, HostReturn(pool, BlobStore(folder))


def again(name: str) -> Host:
    """That host on another machine."""
    known = next(host for host in lab().hosts if host.name == name)
    return dataclasses.replace(known, node_id="new", address="10.0.9.9")


def test_a_host_that_comes_is_given_to_nobody_before_it_is_taken_in(agents: dict[str, Agent], tmp_path: Path) -> None:
    pool, returning = at_home(agents, tmp_path)
    agents["h2"].answers = False
    assert asyncio.run(returning.lost()) == {"hosts": ["h2"]}
    returning.hear("me", ["h2"])
    agents["h2"].answers = True
    assert asyncio.run(pool.available("job", (), 0.0)) == ["h1", "h3"]
    assert not asyncio.run(pool.look_for_lost()) and ("h2",) not in pool.order()
    assert returning.state()["hosts"] == ["h2"] and returning.state()["since"].startswith("20")
    cluster = asyncio.run(returning.take_in(lab(), "me", [again("h2")]))
    assert [host.address for host in cluster.hosts] == ["10.0.0.0", "10.0.9.9", "10.0.0.2"]
    assert asyncio.run(pool.available("job", (), 0.0)) == list(NAMES)
    assert "fill_standby" in agents["h2"].told and returning.state() == {"hosts": [], "since": ""}
    returning.hear("me", ["h2"])  # a word that was on its way
    assert not pool.on_the_way() and not pool.lost


def test_a_word_is_good_for_a_while_and_only_one_client_has_it(
    agents: dict[str, Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, returning = at_home(agents, tmp_path)
    returning.hear("me", ["h2"])
    assert time.monotonic() + 50 < pool.coming_until, "jobs that wait for hosts wait for so long and their own time"
    with pytest.raises(UserError, match="h2: another client brings them back, since 20"):
        returning.hear("you", ["h2"])
    with pytest.raises(UserError, match="nobody has said lately that h2 come back"):
        asyncio.run(returning.take_in(lab(), "you", [again("h2")]))
    monkeypatch.setattr(pool, "coming_until", time.monotonic())  # the client has died
    with pytest.raises(UserError, match="nobody has said lately that h2 come back"):
        asyncio.run(returning.take_in(lab(), "me", [again("h2")]))
    assert asyncio.run(pool.look_for_lost()), "it is asked as any lost host"
    returning.hear("you", ["h2"])
    returning.hear("you", [])
    assert not pool.on_the_way() and pool.coming_until <= time.monotonic()


def test_a_host_that_differs_or_does_not_answer_stays_lost(agents: dict[str, Agent], tmp_path: Path) -> None:
    pool, returning = at_home(agents, tmp_path)
    returning.hear("me", ["h3"])
    agents["h3"].jax = "0.12.0"
    with pytest.raises(FailureError, match=r"none is taken in:\n  jax: h3 has 0\.12\.0, expected 0\.10\.2"):
        asyncio.run(returning.take_in(lab(), "me", [again("h3")]))
    agents["h3"].answers = False
    with pytest.raises(FailureError, match="h3: joined Ray, but no agent has answered"):
        asyncio.run(returning.take_in(lab(), "me", [again("h3")]))
    assert pool.lost == {"h3"} and "fill_standby" not in agents["h3"].told


def test_what_somebody_has_deleted_is_not_asked_for_unbidden() -> None:
    taken = Trouble(text="slice pod-1: PREEMPTED", gone=("pod-1-w0", "pod-1-w1"))
    deleted = Trouble(text="slice pod-2: ABSENT", gone=("pod-2-w0",), by_order=True)
    ill = Trouble(text="slice pod-3: READY UNHEALTHY_MAINTENANCE")
    head = Trouble(text="slice pod-0: SUSPENDING", gone=("pod-0-w0", "pod-0-w1"), head_is_gone=True)
    lost = ["pod-1-w1", "pod-2-w0", "pod-3-w0", "pod-0-w1"]
    assert taken_hosts([head, taken, deleted, ill], lost) == (["pod-1-w1"], "slice pod-1: PREEMPTED")
    assert taken_hosts([taken], ["pod-3-w0"]) == ([], "")
