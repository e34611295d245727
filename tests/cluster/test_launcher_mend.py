"""Which machines a launcher's provider asks for, waits for and ends; cloud and machines are this file's."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import pytest

from cluster import ray_launcher_provider as module
from cluster.ask_launcher import CloudRefusedError
from cluster.errors import ClusterError
from cluster.launcher_file import machines_of
from cluster.launcher_request import SETTLE_S, LauncherRequest
from cluster.launcher_spec import LauncherProviderSpec
from cluster.place_code import Code
from cluster.ray_launcher_provider import RayLauncherProvider
from cluster.record import Cluster, Host
from cluster.remote_machine import RemoteMachine
from cluster.spec import ClusterSpec
from cluster.ssh import SshError
from cluster.ssh_provider import SshProvider
from tests.cluster.test_launcher_file import AWS

pytestmark = pytest.mark.usefixtures("home")

NO_CODE = Code("", b"")
CLUSTER = cast(Cluster, None)
NAMES = ("gpus-0", "gpus-1", "gpus-2")


@dataclasses.dataclass
class Cloud:
    """What a cloud has, and has been asked: (what, names, seconds to settle)."""

    running: list[str]
    refuses: ClusterError | None = None
    asked: list[tuple[str, tuple[str, ...], float]] = dataclasses.field(default_factory=list)

    def ask(self, what: str, request: LauncherRequest, say: Any, **_: bool) -> dict[str, Any]:
        if what != "list":
            self.asked.append((what, request.names, request.settle_s))
        if what == "create":
            on_record = LauncherRequest.load("gpus")
            assert on_record is not None and on_record.asked, "before it is asked for"
            if self.refuses is not None:
                raise self.refuses
            self.running += [name for name in request.names if name not in self.running]
        if what == "end":
            self.running = [name for name in self.running if name not in request.names]
        machines = [{"name": name, "id": "a1", "state": "running", "address": "10.0.0.1"} for name in self.running]
        return {"machines": machines, "identity_file": None, "made": []}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    cloud = Cloud(running=list(NAMES))
    monkeypatch.setattr(module, "ask", cloud.ask)
    monkeypatch.setattr(module, "SSHD_TIMEOUT_S", 0.0)
    return cloud


def provider() -> RayLauncherProvider:
    machines = machines_of(AWS, "aws.yaml", None)
    request = LauncherRequest(name="gpus", request_id="a1", machines=machines, config=AWS, names=NAMES)
    request.save()
    spec = LauncherProviderSpec(file="/home/a/aws.yaml", machines=machines)
    return RayLauncherProvider(
        ClusterSpec(name="gpus", provider=spec, num_hosts=3, devices_per_host=8, accelerator="H100:8")
    )


def on_record() -> LauncherRequest:
    request = LauncherRequest.load("gpus")
    assert request is not None
    return request


def test_what_was_asked_for_without_a_sure_answer_is_waited_for_by_whoever_ends_it(cloud: Cloud) -> None:
    gpus = provider()
    gpus._make(on_record(), NAMES, print)
    assert on_record().settle_s == 0
    cloud.refuses = CloudRefusedError("no capacity")
    with pytest.raises(CloudRefusedError):
        gpus._make(on_record(), NAMES, print)
    assert on_record().settle_s == 0
    cloud.refuses = ClusterError("the connection was lost")
    with pytest.raises(ClusterError):
        gpus._make(on_record(), NAMES, print)
    assert on_record().settle_s == SETTLE_S, "as long as that may be after it was asked for"
    cloud.refuses = CloudRefusedError("no capacity")
    with pytest.raises(CloudRefusedError):
        gpus._make(on_record(), NAMES, print)
    assert on_record().settle_s == SETTLE_S, "for what was asked for before"
    cloud.refuses = None
    gpus._make(on_record(), NAMES, print)
    assert on_record().settle_s == 0 and cloud.asked[-1] == ("create", NAMES, SETTLE_S)


@pytest.fixture
def no_sshd(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Machines that let nobody in; all others are hosts at once."""
    silent: set[str] = set()

    def wait(self: SshProvider, machines: Sequence[RemoteMachine], timeout_s: float) -> None:
        if bad := [machine.host for machine in machines if machine.host in silent]:
            raise SshError(f"host {bad[0]}: connection refused")

    def mend(self: SshProvider, cluster: Cluster, lost: Sequence[str], *_: Any) -> list[Host]:
        return [Host(index=0, name=name, node_id="new", address="10.0.0.1", folder="/h") for name in lost]

    monkeypatch.setattr(SshProvider, "wait_for_sshd", wait)
    monkeypatch.setattr(SshProvider, "mend", mend)
    return silent


def test_a_machine_without_sshd_does_not_keep_the_others_lost(cloud: Cloud, no_sshd: set[str]) -> None:
    cloud.running, said = ["gpus-0", "gpus-1"], list[str]()
    no_sshd.add("gpus-1")  # it runs, and is lost
    back = provider().mend(CLUSTER, ["gpus-1", "gpus-2"], NO_CODE, said.append)
    assert [host.name for host in back] == ["gpus-2"] and said == ["! host gpus-1: connection refused"]
    assert cloud.asked == [("create", ("gpus-2",), 0.0)]


def test_a_new_machine_that_is_no_host_is_ended_and_no_other(cloud: Cloud, no_sshd: set[str]) -> None:
    cloud.running, said = ["gpus-0"], list[str]()
    no_sshd.add("gpus-1")
    back = provider().mend(CLUSTER, ["gpus-1", "gpus-2"], NO_CODE, said.append)
    assert [host.name for host in back] == ["gpus-2"]
    assert said == ["! host gpus-1: connection refused", "ending gpus-1 again"]
    assert [what for what, _, _ in cloud.asked] == ["create", "end"] and cloud.running == ["gpus-0", "gpus-2"]


def test_where_none_can_be_reached_all_that_was_asked_for_is_ended_whatever_ssh_says(
    cloud: Cloud, no_sshd: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.running = ["gpus-0"]
    no_sshd |= {"gpus-1", "gpus-2"}
    gpus = provider()
    with pytest.raises(ClusterError, match="none of gpus-1, gpus-2 could be brought back"):
        gpus.mend(CLUSTER, ["gpus-1", "gpus-2"], NO_CODE, lambda _: None)

    def fail(*_: Any) -> None:
        raise ClusterError("ssh is at its end")

    monkeypatch.setattr(SshProvider, "unmend", fail)
    with pytest.raises(ClusterError, match="ssh is at its end"):
        gpus.unmend(NO_CODE)
    assert cloud.running == ["gpus-0"]
