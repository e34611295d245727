"""`up` again where a machine of EC2's is gone: another is made under its name, and the cluster has its host again."""

import pytest

from tests.provision.aws_cloud import AwsCloud
from tests.provision.conftest import LaptopCli
from tests.provision.test_aws import UP, cli, cloud  # noqa: F401  # fixtures

pytestmark = [pytest.mark.provision, pytest.mark.timeout(600)]


def test_a_machine_that_is_gone_is_made_again_and_taken_in(cloud: AwsCloud, cli: LaptopCli) -> None:  # noqa: F811
    cli(*UP)
    machines = names(cloud)
    assert set(machines) == {"gpus-0", "gpus-1"}
    cloud.ec2.terminate_instances(InstanceIds=[machines["gpus-1"]])
    said = cli("up", "gpus.yaml", code=2)
    assert "create  EC2 instance  gpus-1" in said and "create  EC2 instance  gpus-0" not in said
    assert "this costs money" in said and names(cloud) == {"gpus-0": machines["gpus-0"]}
    said = cli(*UP)
    assert "asking for gpus-1" in said and "setup command(s) of aws.yaml" in said and "host gpus-1 is back" in said
    again = names(cloud)
    assert again["gpus-0"] == machines["gpus-0"] and again["gpus-1"] != machines["gpus-1"]
    assert cli.json("submit", "psum-check", "--name", "again")["state"] == "SUCCEEDED"
    assert cli.job("again")["hosts"] == ["gpus-0", "gpus-1"]
    cli("down", "gpus")
    assert not cloud.left()


def names(cloud: AwsCloud) -> dict[str, str]:  # noqa: F811
    """The instances that run, by our names for them."""
    return {
        tag["Value"]: each["InstanceId"]
        for each in cloud.instances("running")
        for tag in each["Tags"]
        if tag["Key"] == "spmd-launch-host"
    }
