"""Whether machines of a type have the GPUs that a cluster file asks for, before they are paid for.

That is known as far as their cloud tells; what it does not tell is found out on the hosts, when they are up.
"""

from collections.abc import Mapping
from typing import Any

from cluster.accelerator_table import GPU_MODELS
from cluster.accelerators import Accelerator
from cluster.errors import ClusterConfigError
from cluster.launcher_spec import LauncherProviderSpec

Told = Mapping[str, Any]  # `gpus`: [model, count] of each kind, or None: not told; `why` it is not, or is empty


def told_by_aws(ec2: Any, machine_type: str) -> Told:
    """What EC2 tells of an instance type.

    Args:
        ec2: boto3's client.
        machine_type: such as `p5.48xlarge`; '' where a launch template has it.
    """
    from botocore.exceptions import ClientError

    if not machine_type:
        return {"gpus": None, "why": "the launch template has the instance type"}
    try:
        (found,) = ec2.describe_instance_types(InstanceTypes=[machine_type])["InstanceTypes"]
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code == "InvalidInstanceType":
            return {"gpus": [], "why": "there is no such type in this region"}
        return {"gpus": None, "why": f"DescribeInstanceTypes is refused: {code}"}
    gpus = [[gpu.get("Name", ""), gpu.get("Count", 0)] for gpu in found.get("GpuInfo", {}).get("Gpus", [])]
    return {"gpus": gpus, "why": "" if gpus else "this type has no GPUs"}


def unsure_of(told: Told, wanted: Accelerator, provider: LauncherProviderSpec) -> str:
    """Why it is not known whether the machines have the wanted GPUs; '' where it is known that they do.

    Raises:
        ClusterConfigError: it is known that they do not.
    """
    gpus = told["gpus"]
    if gpus is None:
        return str(told["why"])
    if not gpus:
        raise _refusal(str(told["why"]), wanted, provider)
    text = ", ".join(f"{name}:{count}" for name, count in gpus)
    if len(gpus) > 1 or gpus[0][0] not in GPU_MODELS or not gpus[0][1]:  # parts of a GPU are counted as none
        return f"{provider.machines.cloud} calls its GPUs {text}"
    if gpus[0] != [wanted.ray_type, wanted.devices_per_host]:
        raise _refusal(f"this type has {text}", wanted, provider)
    return ""


def _refusal(what: str, wanted: Accelerator, provider: LauncherProviderSpec) -> ClusterConfigError:
    machines = provider.machines
    return ClusterConfigError(
        "accelerator",
        f"{wanted.name} is asked for, and node type {machines.node_type!r} of {provider.file} is "
        f"{machines.machine_type} ({machines.cloud}, {machines.region}): {what}; nothing was asked for",
    )
