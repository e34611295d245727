"""What `up` makes of what a cloud lists and a head answers: the cloud is a list here, the ssh is real."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from cluster import launcher_setup, ray_launcher_provider
from cluster.config_file import load
from cluster.errors import ClusterError
from cluster.launcher_request import LauncherRequest
from cluster.place_code import Code
from cluster.ray_launcher_provider import RayLauncherProvider
from cluster.record import Cluster, cluster_folder, save_spec
from cluster.ssh import Ssh, SshError
from tests.cluster.test_launcher_file import AWS
from tests.cluster.test_record import _cluster

pytest.importorskip("boto3", reason="the extra aws is not installed")
pytestmark = pytest.mark.usefixtures("state_folder")

NOWHERE = "no-such-host.invalid"


class ListedCloud:
    """Two machines that run, at an address that leads nowhere; and what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, what: str, request: LauncherRequest, say: Any, *, gpus: bool = False) -> dict[str, Any]:
        self.asked.append(what)
        if what == "create":
            raise ClusterError("it is enough to have been asked")
        common = {"id": "00c0ffee", "user": "a", "state": "running", "address": NOWHERE}
        machines = [common | {"node": f"i-{k}", "name": f"gpus-{k}"} for k in range(2)]
        return {"machines": machines, "taken": [], "gpus": {"gpus": None, "why": "nobody knows"}}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> ListedCloud:
    cloud = ListedCloud()
    monkeypatch.setattr(ray_launcher_provider, "ask", cloud)
    return cloud


@pytest.fixture
def provider(cloud: ListedCloud, tmp_path: Path) -> Iterator[RayLauncherProvider]:
    """Of a cluster file that nothing was done with yet."""
    (tmp_path / "aws.yaml").write_text(yaml.safe_dump(AWS | {"auth": {"ssh_user": "ubuntu"}}))
    (tmp_path / "gpus.yaml").write_text(
        "name: gpus\nprovider: {type: ray-launcher, file: aws.yaml}\naccelerator: H100:8\nnum_hosts: 2\n"
    )
    provider = RayLauncherProvider(load(tmp_path / "gpus.yaml"))
    yield provider
    provider.close()


def ask_for(provider: RayLauncherProvider) -> None:
    """As an `up` from here that has been answered."""
    save_spec(provider.spec)
    dataclasses.replace(provider._new_request(), request_id="00c0ffee").save()


def bring_up(provider: RayLauncherProvider) -> Cluster:
    """As one that has come to its end."""
    ask_for(provider)
    cluster = dataclasses.replace(_cluster("gpus"), spec=provider.spec)
    cluster.save()
    return cluster


def test_a_head_that_came_up_and_cannot_be_reached_is_never_taken_for_one_that_boots(
    provider: RayLauncherProvider,
) -> None:
    ask_for(provider)
    assert provider.find() is None, "killed before its machines let anybody in: `up` goes on there"
    bring_up(provider)
    with pytest.raises(SshError, match="gpus-0"):
        provider.find()
    assert Cluster.load("gpus") is not None


def test_what_is_brought_up_anew_is_on_record_as_up_no_more(provider: RayLauncherProvider) -> None:
    """Else an `up` that is killed now would be refused by the next while the machines boot."""
    bring_up(provider)
    with pytest.raises(ClusterError, match="enough to have been asked"):
        provider.create(Code("", b""), lambda _: None, lambda: None)
    assert Cluster.load("gpus") is None and provider.find() is None


def test_a_plan_of_another_clients_cluster_asks_for_no_machine_that_runs(
    provider: RayLauncherProvider, cloud: ListedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = _cluster("gpus")
    monkeypatch.setattr(ray_launcher_provider.SshProvider, "find", lambda self: theirs)
    assert provider.find() == theirs and LauncherRequest.load("gpus") is None
    assert provider.plan_mend([]) == []
    assert not cluster_folder("gpus").exists() and "create" not in cloud.asked


def test_a_cluster_that_could_not_be_joined_is_not_on_record_as_asked_for_from_here(
    provider: RayLauncherProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next `up` would go on with it as with one of its own, and delete it when that fails."""

    def no_way(self: Any, cluster: Cluster) -> Cluster:
        raise ClusterError("no way to its head could be opened")

    monkeypatch.setattr(ray_launcher_provider.SshProvider, "find", lambda self: _cluster("gpus"))
    monkeypatch.setattr(ray_launcher_provider.SshProvider, "attach", no_way)
    found = provider.find()
    assert found is not None
    with pytest.raises(ClusterError, match="no way to its head"):
        provider.attach(found)
    assert LauncherRequest.load("gpus") is None


def test_a_setup_command_that_fails_is_told_by_its_number_alone() -> None:
    class Host:
        def run(self, words: Any, command: bytes, timeout_s: float) -> None:
            if b"token" in command:
                raise SshError("host gpus-1: bash ended with exit code 1")

    commands = ["true", "curl -H 'Authorization: token secret'"]
    with pytest.raises(SshError) as failed:
        launcher_setup.run_all(cast(Ssh, Host()), commands)
    assert str(failed.value) == "setup command 2 of 2 failed\nhost gpus-1: bash ended with exit code 1"


def test_what_rays_launcher_does_not_list_on_google_cloud_is_not_said_to_have_ended(
    provider: RayLauncherProvider,
) -> None:
    assert provider.after_down() == "all its machines have ended; aws/us-west-2 lists none"
    provider.machines = dataclasses.replace(provider.machines, cloud="gcp")
    assert "--filter=labels.spmd-launch-cluster=gpus" in provider.after_down()
