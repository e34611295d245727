"""`ray-launcher` on AWS: moto's EC2, with test hosts as its machines, in a network without a way out."""

import json
import sys
from collections.abc import Iterator

import pytest
import yaml

from tests.hosts.machines import missing
from tests.provision.aws_cloud import REGION, AwsCloud, Laptop, aws_cloud

pytestmark = [pytest.mark.provision, pytest.mark.timeout(400)]

FILE_SECRET = "a-secret-of-the-launcher-file"


@pytest.fixture(scope="module")
def cloud() -> Iterator[AwsCloud]:
    if why := missing():
        pytest.skip(why)
    with aws_cloud() as cloud:
        yield cloud


@pytest.fixture
def laptop(cloud: AwsCloud) -> Iterator[Laptop]:
    """With a cluster file and the launcher's; before and after, the cloud is empty."""
    cloud.order()
    laptop = Laptop(cloud)
    laptop.write("aws.yaml", yaml.safe_dump(launcher_file(str(cloud.hosts.identity))))
    laptop.write(
        "gpus.yaml",
        f"name: gpus\nprovider: {{type: ray-launcher, file: aws.yaml}}\naccelerator: A100:8\nemulate: true\n"
        f"num_hosts: 2\npython: {sys.executable}\n",
    )
    assert not cloud.left()
    yield laptop
    cloud.order()
    if laptop.path("/root/.spmd-launch/clusters/gpus").exists():
        laptop("down", "gpus", "--force")
    assert not cloud.left()


def launcher_file(key: str) -> dict[str, object]:
    node_config = {"InstanceType": "p4d.24xlarge", "ImageId": "ami-12345678", "KeyName": "test"}
    return {
        "cluster_name": "team",
        "max_workers": 2,
        "provider": {"type": "aws", "region": REGION, "use_internal_ips": True},
        "auth": {"ssh_user": "root", "ssh_private_key": key},
        "available_node_types": {
            "head": {"node_config": node_config | {"InstanceType": "m5.large"}},
            "gpu": {"min_workers": 0, "max_workers": 2, "node_config": node_config},
        },
        "head_node_type": "head",
        "setup_commands": [f"echo {FILE_SECRET} > ~/set-up", 'test -n "$BASH"'],
        "head_start_ray_commands": ["ray start --head"],
    }


def test_up_a_workload_and_down(cloud: AwsCloud, laptop: Laptop) -> None:
    print(laptop("up", "gpus.yaml", timeout_s=300))
    assert [each["InstanceType"] for each in cloud.instances("running")] == ["p4d.24xlarge"] * 2
    out = laptop("submit", "psum-check", "--set", "steps=3", "--json")
    assert json.loads(out[out.index("{") :])["state"] == "SUCCEEDED"
    print(laptop("down", "gpus"))
    assert not cloud.left()
    assert len(cloud.instances("terminated")) >= 2
