"""Hosts brought back by a client: who is taken in with them, and that what has failed is undone and told."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.errors import ClusterError, NotGivenError
from cluster.gcp_spec import GcpTpuProviderSpec
from cluster.place_code import Code
from cluster.provider import Provider, Say, Trouble
from cluster.record import Cluster, Host
from cluster.spec import ClusterSpec
from launcher import lost_head, mend_beside
from launcher import mend as module
from launcher.errors import FailureError
from launcher.host_return import HostReturn
from launcher.mend import mend
from launcher.mend_beside import GIVEN, NOT_GIVEN, bring_back_taken
from tests.launcher.test_host_return import Agent, again, agents, at_home, lab  # noqa: F401  # a fixture

CODE = Code("", b"")
LEFT = "slice pod-1 (PROVISIONING) is not deleted after 10 min"


class Supervisor:
    """Its part in a return, answering as over its socket."""

    def __init__(self, returning: HostReturn):
        self.returning = returning

    def __call__(self, *_: Any, **__: Any) -> "Supervisor":
        return self

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "mend":
            return self.returning.hear(request["by"], request["hosts"])
        hosts = [Host.from_json(host) for host in request["hosts"]]
        return {"cluster": asyncio.run(self.returning.take_in(lab(), request["by"], hosts)).to_json()}


@dataclasses.dataclass
class Machines:
    """A provider that brings back what a test wants, and undoes it as often as it is asked to."""

    back: Sequence[Host] | BaseException = ()
    undone: Sequence[BaseException | None] = (None,)
    times: int = 0

    def mend(self, cluster: Cluster, lost: Sequence[str], code: Code, say: Say) -> Sequence[Host]:
        if isinstance(self.back, BaseException):
            raise self.back
        return self.back

    def unmend(self, code: Code) -> None:
        self.times += 1
        if (error := self.undone[self.times - 1]) is not None:
            raise error

    def attach(self, cluster: Cluster) -> Cluster:
        return cluster

    def troubles(self) -> Sequence[Trouble]:
        return [Trouble(text="slice pod-1: PREEMPTED", gone=("h3",))]

    def close(self) -> None:
        pass


Mend = Callable[[Machines, Sequence[str]], Cluster]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def bring_back(
    agents: dict[str, Agent],  # noqa: F811
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Mend:
    _, returning = at_home(agents, tmp_path)
    monkeypatch.setattr(module, "Connection", Supervisor(returning))
    return lambda machines, lost: mend(cast(Provider, machines), lab(), lost, CODE, said.append)


def test_a_slice_that_was_lost_in_part_comes_back_whole(bring_back: Mend, said: list[str]) -> None:
    machines = Machines(back=[again("h2"), again("h3")])  # h2 answered when h3 was silent, and went with its slice
    assert [host.node_id for host in bring_back(machines, ["h3"]).hosts] == ["0", "new", "new"]
    assert said == ["host h2 is back", "host h3 is back"] and machines.times == 0


def test_what_could_not_be_undone_is_told(bring_back: Mend, said: list[str]) -> None:
    with pytest.raises(FailureError, match="goes on without h3: no sshd") as failed:
        bring_back(Machines(back=ClusterError("no sshd"), undone=[ClusterError(LEFT)]), ["h3"])
    assert f"could be undone, and it may cost: {LEFT}" in str(failed.value)
    with pytest.raises(KeyboardInterrupt):
        bring_back(Machines(back=KeyboardInterrupt(), undone=[ClusterError(LEFT)]), ["h3"])
    assert said[0] == "undoing what was begun" and LEFT in said[1]


def test_hosts_that_are_refused_are_given_back(bring_back: Mend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Word, "give", lambda self, hosts: None)  # as if it had not come in time
    machines = Machines(back=[again("h3")], undone=[ClusterError(LEFT)])
    with pytest.raises(FailureError, match="nobody has said lately that h3 come back") as failed:
        bring_back(machines, ["h3"])
    assert LEFT in str(failed.value)


def test_an_interrupt_does_not_stop_the_undoing_and_a_second_does(bring_back: Mend, said: list[str]) -> None:
    machines = Machines(back=ClusterError("no sshd"), undone=[KeyboardInterrupt(), ClusterError(LEFT)])
    with pytest.raises(KeyboardInterrupt):
        bring_back(machines, ["h3"])
    assert machines.times == 2 and "another interrupt leaves it there, where it may cost" in said[0] and LEFT in said[1]
    machines = Machines(back=KeyboardInterrupt(), undone=[KeyboardInterrupt(), KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        bring_back(machines, ["h3"])
    assert machines.times == 2


@pytest.mark.parametrize(
    ("back", "code"),
    [
        ([again("h3")], GIVEN),
        (ClusterError("no sshd"), GIVEN),
        (NotGivenError("the zone has none free"), NOT_GIVEN),
    ],
)
def test_a_try_says_whether_the_cloud_has_given_machines(
    bring_back: Mend, monkeypatch: pytest.MonkeyPatch, back: Any, code: int
) -> None:
    monkeypatch.setattr(mend_beside, "lost_hosts", lambda _: ["h3"])
    monkeypatch.setattr(mend_beside, "provider_for", lambda _: Machines(back=back))
    monkeypatch.setattr(mend_beside, "our_code", lambda _: CODE)
    assert bring_back_taken(lab()) == code


def test_lost_hosts_whose_machines_are_there_and_cost_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = lab()
    paid = ClusterSpec(
        name="lab", provider=GcpTpuProviderSpec(project="test-project", zone="us-central2-b"), num_hosts=2,
        devices_per_host=4, accelerator="tpu-v4-8",
    )  # fmt: skip
    monkeypatch.setattr(lost_head, "provider_for", lambda _: Machines())
    lines = lost_head.describe_troubles(dataclasses.replace(pod, spec=paid), ["h2", "h3"])
    assert lines[0] == "slice pod-1: PREEMPTED" and "asks for new machines in their place" in lines[1]
    assert lines[2].startswith("h2: lost, but the cloud has the machines, which cost")
    assert lost_head.describe_troubles(pod, ["h2"]) == [], "of no cloud"
