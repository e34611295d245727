"""What a cloud tells of an instance type, against what the cluster file asks for."""

from typing import Any

import pytest

from cluster.accelerators import Accelerator
from cluster.errors import ClusterConfigError
from cluster.instance_gpus import told_by_aws, unsure_of
from cluster.launcher_file import machines_of
from cluster.launcher_spec import LauncherProviderSpec
from tests.cluster.test_launcher_file import AWS

PROVIDER = LauncherProviderSpec(file="/home/a/aws.yaml", machines=machines_of(AWS, "aws.yaml", None))
NO_TYPE = "there is no such type in this region"


def unsure(gpus: list[list[Any]] | None, wanted: str, why: str = "") -> str:
    return unsure_of({"gpus": gpus, "why": why}, Accelerator.parse(wanted), PROVIDER)


@pytest.mark.parametrize(
    ("gpus", "why", "found"),
    [
        ([["A100", 8]], "", "this type has A100:8"),
        ([["H100", 1]], "", "this type has H100:1"),
        ([], "this type has no GPUs", "this type has no GPUs"),
        ([], NO_TYPE, NO_TYPE),
    ],
)
def test_other_gpus_are_refused_with_file_node_type_and_instance_type(gpus: Any, why: str, found: str) -> None:
    with pytest.raises(ClusterConfigError) as refusal:
        unsure(gpus, "H100:8", why)
    assert str(refusal.value) == (
        f"accelerator: H100:8 is asked for, and node type 'gpu' of /home/a/aws.yaml is p5.48xlarge (aws, us-west-2): "
        f"{found}; nothing was asked for"
    )


def test_what_is_known_passes_and_what_is_not_known_passes_with_words() -> None:
    assert unsure([["H100", 8]], "H100:8") == ""
    assert unsure([["RTX PRO Server 6000", 8]], "RTX-PRO-6000:8") == "aws calls its GPUs RTX PRO Server 6000:8"
    assert unsure([["L4", 0]], "L4:1") == "aws calls its GPUs L4:0"  # g6f: a part of one
    assert unsure(None, "H100:8", "the launch template has it") == "the launch template has it"


def test_an_account_that_may_not_ask_is_no_mistake_of_the_file() -> None:
    class Ec2:
        def describe_instance_types(self, **_: Any) -> Any:
            botocore = pytest.importorskip("botocore.exceptions")
            raise botocore.ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "DescribeInstanceTypes")

    pytest.importorskip("botocore", reason="the extra aws is not installed")
    told = told_by_aws(Ec2(), "p5.48xlarge")
    assert told == {"gpus": None, "why": "DescribeInstanceTypes is refused: UnauthorizedOperation"}
