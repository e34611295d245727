"""What lies on AWS under our label, found without a launcher's file. See `cluster.leftovers`."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cluster import aws
from cluster.errors import ClusterError
from cluster.labels import CLUSTER, ID, USER
from cluster.launcher_errors import refusal
from cluster.launcher_request import LauncherRequest
from cluster.launcher_spec import LauncherProviderSpec
from cluster.leftovers import Resource
from cluster.record import cluster_names

Credentials = Mapping[str, str]  # as boto3 takes them
INSTANCE, VOLUME = "EC2 instance", "EBS volume"
_ELSEWHERE = {
    "gcp": "`gcloud compute instances list --filter=labels.spmd-launch-cluster:*`",
    "azure": "`az vm list --show-details`, tag spmd-launch-cluster",
}


def labelled(where: str) -> list[Resource]:
    """Machines with our label in a region, and disks of machines that are gone.

    Args:
        where: CLOUD/REGION, as `cluster.launcher_spec.LauncherProviderSpec.place`.

    Raises:
        ClusterError: it cannot be asked, and what to do.
    """
    return [resource for resource, _ in _labelled(where).values()]


def _labelled(where: str) -> dict[str, tuple[Resource, Credentials]]:
    """By name, with what lets in where it is."""
    found: dict[str, tuple[Resource, Credentials]] = {}
    known = _known_credentials(where)
    for credentials in ({}, *known):
        try:
            with _ec2(where, credentials) as ec2:
                found |= {each.name: (each, credentials) for each in _marked(ec2, where)}
        except ClusterError as error:
            has_none = type(error.__cause__).__name__ == "NoCredentialsError"
            if not (has_none and known):
                raise
    return found


def _marked(ec2: Any, where: str) -> list[Resource]:
    marked = {CLUSTER: ""}
    disks = [each for each in aws.volumes(ec2, marked) if each["State"] == "available"]
    return [
        *(_resource(where, INSTANCE, each, "InstanceId", "LaunchTime") for each in aws.instances(ec2, marked)),
        *(_resource(where, VOLUME, each, "VolumeId", "CreateTime") for each in disks),
    ]


def _known_credentials(where: str) -> list[Credentials]:
    """Those that launcher's files of clusters on record name: maybe of other accounts than those that boto3 finds."""
    requests = [request for name in cluster_names() if (request := LauncherRequest.load(name)) is not None]
    named = [request.config["provider"].get("aws_credentials") for request in requests if _place(request) == where]
    return [each for k, each in enumerate(named) if each and each not in named[:k]]


def _place(request: LauncherRequest) -> str:
    return f"{request.machines.cloud}/{request.machines.region}"


def delete_labelled(resource: Resource) -> None:
    """Deletes what `labelled` has told; returns when it is gone.

    Raises:
        ClusterError: it cannot be deleted, and what to do.
    """
    found = _labelled(resource.where)
    if resource.name not in found:
        raise ClusterError(f"{resource.kind} {resource.name} is not there any more")
    _, credentials = found[resource.name]
    with _ec2(resource.where, credentials) as ec2:
        if resource.kind == VOLUME:
            ec2.delete_volume(VolumeId=resource.name)
            return
        ec2.terminate_instances(InstanceIds=[resource.name])
        ec2.get_waiter("instance_terminated").wait(InstanceIds=[resource.name])


def end_from_inside(region: str, cluster: str, addresses: Collection[str]) -> None:
    """Ends the machines of the cluster that this machine is one of, itself last; what shuts down costs nothing.

    Args:
        region: of them.
        cluster: its name.
        addresses: of this machine.

    Raises:
        ClusterError: it may not, or cannot.
    """
    with _ec2(f"aws/{region}", {}) as ec2:
        found = aws.instances(ec2, {CLUSTER: cluster})
        own = [each for each in found if each.get("PrivateIpAddress") in addresses]
        if not own:
            raise ClusterError(f"aws lists no machine of cluster {cluster!r} in {region} that is this one")
        ours = {tag["Key"]: tag["Value"] for tag in own[0]["Tags"] if tag["Key"] in (CLUSTER, ID)}
        others = [each["InstanceId"] for each in aws.instances(ec2, ours) if each not in own]
        if others:
            ec2.terminate_instances(InstanceIds=others)
        ec2.terminate_instances(InstanceIds=[own[0]["InstanceId"]])


def _resource(where: str, kind: str, found: dict[str, Any], name: str, created: str) -> Resource:
    tags = {tag["Key"]: tag["Value"] for tag in found["Tags"]}
    state = found["State"]
    return Resource(
        provider=LauncherProviderSpec.type,
        where=where,
        kind=kind,
        name=found[name],
        cluster=tags[CLUSTER],
        id=tags.get(ID, ""),
        state=state["Name"] if isinstance(state, dict) else state,
        created=found[created].isoformat(timespec="seconds"),
        billable=not (isinstance(state, dict) and state["Name"] == "shutting-down"),
        user=tags.get(USER, ""),
    )


@contextmanager
def _ec2(where: str, credentials: Credentials) -> Iterator[Any]:
    """A client of that region, whose errors become words; {}: with the credentials that boto3 finds."""
    cloud, _, region = where.partition("/")
    if cloud != "aws":
        raise ClusterError(f"what lies in {where} is not listed here: {_ELSEWHERE.get(cloud, 'see its console')}")
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise ClusterError(f"asking {where} needs boto3: pip install 'spmd-launch[aws]'") from error
    try:
        yield boto3.client("ec2", region, **credentials)
    except (BotoCoreError, ClientError) as error:
        machines = {"cloud": cloud, "region": region, "machine_type": ""}
        raise ClusterError(refusal(error, machines)) from error
