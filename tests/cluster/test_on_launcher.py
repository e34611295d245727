"""Ray's launcher and ours against moto's EC2, in this process: no packet leaves it."""

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws
from moto.ec2.models import ec2_backends

from cluster import aws, aws_leftovers, instance_gpus, on_launcher
from cluster.errors import ClusterError
from cluster.launcher_errors import RefusedError, refusal
from cluster.launcher_file import machines_of
from cluster.launcher_request import LauncherRequest
from tests.cluster.test_launcher_file import AWS, AZURE, changed

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # moto's and Ray's own

CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(on_launcher, "POLL_S", 0.01)
    monkeypatch.setattr(aws, "POLL_S", 0.01)
    monkeypatch.setattr(on_launcher, "AT_ONCE", 1)  # moto in one process is not made for threads
    with mock_aws():
        client = boto3.client("ec2", "us-west-2", **CREDENTIALS)
        client.create_key_pair(KeyName="mine")
        yield client
    from ray.autoscaler._private.aws.utils import client_cache, resource_cache
    from ray.autoscaler._private.providers import _clear_provider_cache

    resource_cache.cache_clear()
    client_cache.cache_clear()
    _clear_provider_cache()


def tagged(kind: str) -> dict[str, Any]:
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in order()["tags"].items()]}


def order(config: dict[str, Any] | None = None, request_id: str = "00c0ffee") -> dict[str, Any]:
    config = changed(config or AWS, "provider.aws_credentials", CREDENTIALS)
    tags = {on_launcher.CLUSTER: "gpus", on_launcher.ID: request_id, on_launcher.USER: "alice"}
    machines = vars(machines_of(config, "aws.yaml", None))
    return {
        "config": copy.deepcopy(config), "machines": machines, "cluster_name": "team-gpus",
        "names": ["gpus-0", "gpus-1"], "tags": tags, "settle_s": 0.0, "gpus": False, "taken": False,
    }  # fmt: skip


def test_what_is_made_is_marked_found_again_and_ended(ec2: Any, capsys: pytest.CaptureFixture[str]) -> None:
    made = on_launcher.create(order())
    assert [machine["name"] for machine in made["machines"]] == made["made"] == ["gpus-0", "gpus-1"]
    assert made["identity_file"] == "~/.ssh/mine.pem"
    found = aws.instances(ec2, order()["tags"])
    assert {each["InstanceType"] for each in found} == {"p5.48xlarge"}
    assert all("IamInstanceProfile" not in each for each in found), "no role with rights to everything"
    assert len(aws.groups(ec2, "team-gpus")) == 1 and len(aws.volumes(ec2, order()["tags"])) == 2
    again = on_launcher.create(order())
    assert again["made"] == [] and again["machines"] == made["machines"]
    ec2.terminate_instances(InstanceIds=[made["machines"][0]["node"]])
    assert on_launcher.create(order())["made"] == ["gpus-0"]
    with pytest.raises(RefusedError, match="machines of another cluster 'gpus', made by alice: gpus-"):
        on_launcher.create(order(request_id="deadbeef"))
    assert on_launcher.delete(order(request_id="deadbeef"))["gone"]
    assert len(aws.instances(ec2, order()["tags"])) == 2, "of another request"
    ec2.stop_instances(InstanceIds=[made["machines"][1]["node"]])  # as somebody in AWS's console may
    assert on_launcher.delete(order()) == {"lines": [], "gone": True}
    assert not aws.instances(ec2, {on_launcher.CLUSTER: ""}) and not aws.groups(ec2, "team-gpus")


def test_what_the_cloud_has_taken_back_is_told_from_what_a_person_has_ended(ec2: Any) -> None:
    made = [machine["node"] for machine in on_launcher.create(order())["machines"]]
    asked = order() | {"taken": True}
    assert on_launcher.list_machines(asked)["taken"] == []
    ec2.terminate_instances(InstanceIds=made)  # moto: Client.UserInitiatedShutdown
    assert on_launcher.list_machines(asked) == {"machines": [], "taken": []}
    [backend] = [regions["us-west-2"] for regions in ec2_backends.values()]
    backend.get_instance(made[1]).state_reason.code = "Server.SpotInstanceTermination"
    assert on_launcher.list_machines(asked)["taken"] == ["gpus-1"]
    assert on_launcher.create(order() | {"names": ["gpus-1"]})["made"] == ["gpus-1"]
    assert on_launcher.list_machines(asked)["taken"] == [], "the one that had the name before counts no more"
    on_launcher.create(order())
    assert on_launcher.end(order() | {"names": ["gpus-1"]}) == {}
    assert [machine["name"] for machine in on_launcher.list_machines(order())["machines"]] == ["gpus-0"]


def test_a_disk_that_is_to_stay_is_said(ec2: Any) -> None:
    disk = {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 7, "DeleteOnTermination": False}}
    config = changed(AWS, "available_node_types.gpu.node_config.BlockDeviceMappings", [disk])
    on_launcher.create(order(config))
    lines = on_launcher.delete(order(config))["lines"]
    assert lines and all("a disk of 7 GiB stays and costs money" in line for line in lines)


def test_a_head_ends_the_machines_of_its_own_cluster_alone(ec2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in CREDENTIALS.items():
        monkeypatch.setenv(key.upper(), value)
    made = on_launcher.create(order())
    (other,) = ec2.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1)["Instances"]
    ec2.create_tags(Resources=[other["InstanceId"]], Tags=[{"Key": on_launcher.CLUSTER, "Value": "gpus"}])
    with pytest.raises(ClusterError, match="lists no machine of cluster 'gpus' in us-west-2 that is this one"):
        aws_leftovers.end_from_inside("us-west-2", "gpus", {"127.0.0.1"})
    head = next(each for each in aws.instances(ec2, {}) if each["InstanceId"] == made["machines"][0]["node"])
    aws_leftovers.end_from_inside("us-west-2", "gpus", {"127.0.0.1", head["PrivateIpAddress"]})
    assert [each["InstanceId"] for each in aws.instances(ec2, {})] == [other["InstanceId"]]


def test_what_carries_our_label_is_listed_and_deleted(ec2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in CREDENTIALS.items():
        monkeypatch.setenv(key.upper(), value)
    made = on_launcher.create(order())
    found = aws_leftovers.labelled("aws/us-west-2")
    assert {(each.cluster, each.user, each.kind) for each in found} == {("gpus", "alice", "EC2 instance")}
    assert {each.name for each in found} == {machine["node"] for machine in made["machines"]}
    assert all(each.billable and each.state == "running" and each.created.startswith("20") for each in found)
    for each in found:
        aws_leftovers.delete_labelled(each)
    disk = ec2.create_volume(AvailabilityZone="us-west-2a", Size=7, TagSpecifications=[tagged("volume")])
    (left,) = aws_leftovers.labelled("aws/us-west-2")
    assert (left.name, left.kind, left.state) == (disk["VolumeId"], "EBS volume", "available")
    aws_leftovers.delete_labelled(left)
    assert not aws_leftovers.labelled("aws/us-west-2")
    with pytest.raises(ClusterError, match=r"EBS volume vol-.* is not there any more"):
        aws_leftovers.delete_labelled(left)
    with pytest.raises(ClusterError, match="gcp/us-east5 is not listed here: `gcloud compute instances list"):
        aws_leftovers.labelled("gcp/us-east5")


def test_other_accounts_of_known_clusters_are_asked_too(ec2: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in CREDENTIALS:
        monkeypatch.delenv(key.upper(), raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ClusterError, match="there are none here: `aws configure`"):
        aws_leftovers.labelled("aws/us-west-2")
    machines = machines_of(AWS, "aws.yaml", None)
    for name, cloud, credentials in (("a", "aws", None), ("b", "aws", CREDENTIALS), ("c", "gcp", {"no": "aws"})):
        LauncherRequest(
            name=name, request_id="a1", machines=dataclasses.replace(machines, cloud=cloud), names=(),
            config={"provider": {"aws_credentials": credentials} if credentials else {}},
        ).save()  # fmt: skip
    made = on_launcher.create(order())["made"]
    found = aws_leftovers.labelled("aws/us-west-2")
    assert len(found) == len(made) == 2 and {each.id for each in found} == {order()["tags"][on_launcher.ID]}
    aws_leftovers.delete_labelled(found[0])
    assert aws_leftovers.labelled("aws/us-west-2") == found[1:]


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([(400, "VcpuLimitExceeded")] * 2, ClientError),
        ([(400, "VcpuLimitExceeded"), None], on_launcher.UnsureError),
        ([(400, "VcpuLimitExceeded"), (500, "InternalError")], on_launcher.UnsureError),
        ([(0, ""), (400, "VcpuLimitExceeded")], on_launcher.UnsureError),
    ],
)
def test_only_where_all_is_refused_by_an_answer_nothing_can_come(
    ec2: Any, monkeypatch: pytest.MonkeyPatch, errors: Sequence[tuple[int, str] | None], kind: type[Exception]
) -> None:
    left = list(errors)
    launcher = on_launcher.Launcher(order(), on_launcher.bootstrapped(order()))

    def create_node(*_: Any) -> None:
        if (error := left.pop(0)) is None:
            return
        status, code = error
        if not code:
            raise EndpointConnectionError(endpoint_url="https://ec2")
        raise ClientError(
            {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}, "RunInstances"
        )

    monkeypatch.setattr(launcher.provider, "create_node", create_node)
    with pytest.raises(kind):
        launcher.make(["gpus-0", "gpus-1"])


def test_machines_that_do_not_run_in_time_may_be_there(ec2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_launcher, "START_TIMEOUT_S", -1.0)
    monkeypatch.setattr(on_launcher.Launcher, "_address", lambda self, node: None)
    with pytest.raises(on_launcher.UnsureError) as caught:
        on_launcher.create(order())
    assert "not all machines run" in refusal(caught.value.__cause__ or caught.value, order()["machines"])


def test_a_refusal_is_what_ray_printed_where_its_error_says_nothing(
    ec2: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = order(changed(AWS, "available_node_types.gpu.node_config.SubnetIds", ["subnet-0"]))
    with pytest.raises(Exception) as caught:
        on_launcher.create(refused)
    told = refusal(caught.value, refused["machines"], capsys.readouterr().err)
    assert told == "aws: Not all subnet IDs found: ('subnet-0',)"


def test_a_list_on_azure_makes_nothing_and_is_empty_before_the_first_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class ResourceNotFoundError(Exception):
        """As Azure's client raises it for a resource group that is not there."""

    class NoGroup:
        """The launcher of a group that was never made; to complete its file would make it."""

        def __init__(self, order: dict[str, Any], config: dict[str, Any]):
            assert "unique_id" not in config["provider"]

        def listed(self) -> list[Any]:
            raise error

    azure = order() | {"config": AZURE, "machines": vars(machines_of(AZURE, "azure.yaml", None))}
    monkeypatch.setattr(on_launcher, "Launcher", NoGroup)
    error: Exception = ResourceNotFoundError("(ResourceGroupNotFound)")
    assert on_launcher.list_machines(azure) == {"machines": []}
    error = RuntimeError("no way to it")
    with pytest.raises(RuntimeError):
        on_launcher.list_machines(azure)


def test_a_list_tells_on_order_which_gpus_the_type_has(ec2: Any) -> None:
    assert on_launcher.list_machines(order()) == {"machines": []}
    told = on_launcher.list_machines(order() | {"gpus": True})
    assert told == {"machines": [], "gpus": {"gpus": [["H100", 8]], "why": ""}}
    assert instance_gpus.told_by_aws(ec2, "m5.large") == {"gpus": [], "why": "this type has no GPUs"}
    assert instance_gpus.told_by_aws(ec2, "p5.49xlarge") == {"gpus": [], "why": "there is no such type in this region"}
    assert instance_gpus.told_by_aws(ec2, "")["gpus"] is None
