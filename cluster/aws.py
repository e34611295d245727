"""What Ray's launcher does not do on AWS: finds everything that carries our label, and ends what `ray down` leaves."""

import time
from typing import Any

from cluster.labels import HOST

Tags = dict[str, str]
END_TIMEOUT_S = 300.0
POLL_S = 2.0
ENDED = "terminated"
# docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html; a person's is Client.UserInitiatedShutdown
TAKEN_BACK = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
NOT_ENDED = ["pending", "running", "stopping", "stopped", "shutting-down"]
# Ray makes a role with all rights to EC2 and S3 for a head without a profile. Ours makes no machines, and has none.
NO_PROFILE = {"Name": "none"}


def mark_volumes(node_config: dict[str, Any], tags: Tags) -> None:
    """Has the disks of new machines carry our label, too: one that outlives its machine is found."""
    ours = {"ResourceType": "volume", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
    specifications = node_config.setdefault("TagSpecifications", [])
    for specification in specifications:
        if specification["ResourceType"] == "volume":
            specification["Tags"] = [*specification.get("Tags", []), *ours["Tags"]]
            return
    specifications.append(ours)


def end_rest(ec2: Any, tags: Tags, cluster_name: str) -> dict[str, Any]:
    """Ends stopped machines, waits for the end of all, and removes the security group that Ray has made.

    Args:
        ec2: boto3's client.
        tags: of one request.
        cluster_name: under which Ray's launcher has made the group.

    Returns:
        `lines` and `gone`, as `cluster.on_launcher.delete` does.
    """
    deadline = time.monotonic() + END_TIMEOUT_S
    while left := instances(ec2, tags):
        if stopped := [each["InstanceId"] for each in left if each["State"]["Name"] != "shutting-down"]:
            ec2.terminate_instances(InstanceIds=stopped)
        elif time.monotonic() > deadline:
            names = ", ".join(each["InstanceId"] for each in left)
            line = f"{names}: still shutting down after {END_TIMEOUT_S:g} s, which costs nothing; `down` again later"
            return {"lines": [line], "gone": False}
        time.sleep(POLL_S)
    lines = [
        f"{volume['VolumeId']}: a disk of {volume['Size']} GiB stays and costs money, as the launcher's file says "
        f"(DeleteOnTermination: false); `aws ec2 delete-volume --volume-id {volume['VolumeId']}` ends it"
        for volume in volumes(ec2, tags)
    ]
    for group in groups(ec2, cluster_name):
        ec2.delete_security_group(GroupId=group["GroupId"])
    return {"lines": lines, "gone": True}


def instances(ec2: Any, tags: Tags) -> list[dict[str, Any]]:
    """Instances with these tags that have not ended, stopped ones too."""
    return _described(ec2, [*_filters(tags), {"Name": "instance-state-name", "Values": NOT_ENDED}])


def _described(ec2: Any, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
    return [each for page in pages for reservation in page["Reservations"] for each in reservation["Instances"]]


def taken_back(ec2: Any, tags: Tags) -> list[str]:
    """Names of machines with these tags that AWS itself has ended, as their spot capacity was wanted elsewhere.

    Of several that had one name the newest counts; AWS shows one for about an hour after its end.
    """
    newest: dict[str, dict[str, Any]] = {}
    for instance in sorted(_described(ec2, _filters(tags)), key=lambda each: each["LaunchTime"]):
        names = [tag["Value"] for tag in instance.get("Tags", []) if tag["Key"] == HOST]
        newest |= dict.fromkeys(names, instance)
    reasons = {name: instance.get("StateReason", {}).get("Code") for name, instance in newest.items()}
    return [name for name, reason in reasons.items() if reason in TAKEN_BACK]


def volumes(ec2: Any, tags: Tags) -> list[dict[str, Any]]:
    """Disks with these tags."""
    pages = ec2.get_paginator("describe_volumes").paginate(Filters=_filters(tags))
    return [each for page in pages for each in page["Volumes"] if each["State"] not in ("deleting", "deleted")]


def groups(ec2: Any, cluster_name: str) -> list[dict[str, Any]]:
    """Security groups that Ray's launcher has made for this cluster and no other; none of the user's."""
    found: list[dict[str, Any]] = ec2.describe_security_groups(
        Filters=_filters({"ray-autoscaler": "true", "ray-cluster-name": cluster_name})
    )["SecurityGroups"]
    return found


def _filters(tags: Tags) -> list[dict[str, Any]]:
    return [
        {"Name": "tag-key", "Values": [key]} if value == "" else {"Name": f"tag:{key}", "Values": [value]}
        for key, value in tags.items()
    ]
