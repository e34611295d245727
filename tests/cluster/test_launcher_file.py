"""What of a file that `ray up` takes is read, chosen and refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import launcher_file
from cluster.config_file import load
from cluster.errors import ClusterConfigError
from cluster.launcher_spec import LauncherProviderSpec, instance_types
from cluster.spec import ClusterSpec

GPU = {"InstanceType": "p5.48xlarge", "ImageId": "ami-1", "KeyName": "mine"}
AWS: dict[str, Any] = {
    "cluster_name": "team",
    "max_workers": 4,
    "provider": {"type": "aws", "region": "us-west-2", "aws_credentials": {"aws_secret_access_key": "hush"}},
    "auth": {"ssh_user": "ubuntu", "ssh_private_key": "~/.ssh/mine.pem"},
    "available_node_types": {
        "head": {"node_config": {"InstanceType": "m5.large", "ImageId": "ami-1", "KeyName": "mine"}},
        "gpu": {"node_config": GPU},
    },
    "head_node_type": "head",
}
PREEMPTIBLE = [{"preemptible": True}]
GCP: dict[str, Any] = {
    "cluster_name": "team",
    "max_workers": 3,
    "provider": {"type": "gcp", "region": "us-east5", "availability_zone": "us-east5-a", "project_id": "mine"},
    "auth": {"ssh_user": "ubuntu"},
    "available_node_types": {
        "only": {
            "max_workers": 3,
            "node_config": {"machineType": "a3-highgpu-8g", "scheduling": [{"preemptible": True}]},
        }
    },
    "head_node_type": "only",
}
AZURE: dict[str, Any] = {
    "cluster_name": "team",
    "provider": {"type": "azure", "location": "westus2", "resource_group": "mine"},
    "auth": {"ssh_user": "ubuntu", "ssh_private_key": "~/.ssh/id"},
    "available_node_types": {
        "head": {"node_config": {"azureParameters": {"vmSize": "Standard_D4s_v3"}}},
        "gpu": {"node_config": {"azureParameters": {"vmSize": "Standard_ND96isr_H100_v5", "priority": "Spot"}}},
    },
    "head_node_type": "head",
}
CLUSTER = (
    "name: gpus\nprovider: {{type: ray-launcher, file: {file}{more}}}\naccelerator: H100:8\nnum_hosts: {num_hosts}\n"
)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The clouds' packages that are there; a test may take one away."""
    found = {"boto3", "googleapiclient", "azure.mgmt.compute"}
    monkeypatch.setattr(launcher_file, "find_spec", lambda module: module if module in found else None)
    return found


def write(folder: Path, config: Any, num_hosts: int = 4, more: str = "", file: str = "launcher.yaml") -> Path:
    (folder / "launcher.yaml").write_text(
        yaml.safe_dump(config, sort_keys=False) if not isinstance(config, str) else config
    )
    path = folder / "gpus.yaml"
    path.write_text(CLUSTER.format(file=file, more=more, num_hosts=num_hosts))
    return path


def changed(config: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    """A copy with another value at a dotted key; None: without it."""
    config = copy.deepcopy(config)
    *parents, last = key.split(".")
    place = config
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    if value is None:
        del place[last]
    return config


@pytest.mark.parametrize(
    ("config", "kind", "region", "spot", "product", "num_hosts"),
    [
        (AWS, "p5.48xlarge", "us-west-2", False, "aws/p5.48xlarge", 4),
        (GCP, "a3-highgpu-8g", "us-east5", True, "gcp/a3-highgpu-8g", 4),  # Ray counts the head apart
        (AZURE, "Standard_ND96isr_H100_v5", "westus2", True, "azure/Standard_ND96isr_H100_v5", 2),  # Ray's default
    ],
)
def test_the_machines_of_a_file(
    tmp_path: Path, config: Any, kind: str, region: str, spot: bool, product: str, num_hosts: int
) -> None:
    spec = load(write(tmp_path, config, num_hosts))
    assert instance_types(spec) == [(kind, num_hosts)]
    assert isinstance(spec.provider, LauncherProviderSpec)
    (rental,) = spec.provider.rentals(spec)
    assert (rental.product, rental.region, rental.count, rental.spot) == (product, region, num_hosts, spot)
    with pytest.raises(ClusterConfigError, match=rf"num_hosts: must be at most {num_hosts}, .*not {num_hosts + 1}"):
        load(write(tmp_path, config, num_hosts + 1))


def test_the_record_has_no_secret_and_is_the_same_wherever_the_file_lies(tmp_path: Path) -> None:
    spec = load(write(tmp_path, AWS))
    assert "hush" not in repr(spec.to_json()) and ClusterSpec.from_json(spec.to_json()) == spec
    (tmp_path / "other").mkdir()
    assert load(write(tmp_path / "other", AWS)) == spec
    assert load(write(tmp_path / "other", changed(AWS, "provider.region", "us-east-1"))) != spec


def test_only_the_files_own_commands_for_workers_are_run(tmp_path: Path) -> None:
    assert launcher_file.setup_commands(AWS, "gpu") == []
    config = AWS | {"initialization_commands": ["a"], "setup_commands": ["b"], "worker_setup_commands": ["c"],
                    "head_setup_commands": ["no"], "head_start_ray_commands": ["no"]}  # fmt: skip
    assert launcher_file.setup_commands(config, "gpu") == ["a", "b", "c"]
    config = changed(config, "available_node_types.gpu.worker_setup_commands", ["d"])
    assert launcher_file.setup_commands(config, "gpu") == ["a", "b", "d"]


GPU_CONFIG = "available_node_types.gpu.node_config"
SPOT = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "persistent"}}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("a: [", "launcher.yaml is not YAML: "),
        ("- a", "must be keys and values"),
        (changed(AWS, "cluster_name", None), "launcher.yaml: cluster_name: is missing"),
        (changed(AWS, "cluster_name", "n" * 23), "cluster_name: must be at most 22 characters"),
        (changed(AWS, "auth.ssh_user", None), "auth.ssh_user: is missing"),
        (changed(AWS, "auth.ssh_user", "-oProxyCommand=x"), "auth.ssh_user: must be a user's name"),
        (changed(AWS, "provider.region", 7), "provider.region: must be text, not 7"),
        (changed(AWS, "provider.type", "local"), "machines that are there already are `provider: {type: ssh"),
        (changed(AWS, "provider.type", "kuberay"), "`provider: {type: ray, address: HOST:PORT}`"),
        (changed(AWS, "provider.type", "asw"), "must be one of aws, gcp, azure, not 'asw'; did you mean 'aws'?"),
        (changed(AWS, "docker", {"image": "x", "container_name": "y"}), "say `python: image:NAME`"),
        (changed(AWS, "file_mounts", {"/a": "/b"}), "file_mounts: is not used here"),
        (changed(AWS, "auth.ssh_proxy_command", "nc"), "say ProxyCommand or ProxyJump in ~/.ssh/config"),
        (changed(AWS, "available_node_types", None), "available_node_types: is missing"),
        (changed(AWS, "available_node_types", None) | {"head_node": {}}, "is of Ray before 2.0"),
        (changed(AWS, "head_node_type", "haed"), "head_node_type: must be one of head, gpu, not 'haed'"),
        (changed(AWS, "max_workers", "many"), "max_workers: must be a whole number, not 'many'"),
        (changed(AWS, "available_node_types.more", {"node_config": GPU}), "several (gpu, more): say which one"),
        (changed(AWS, GPU_CONFIG, None), f"{GPU_CONFIG}: is missing"),
        (changed(AWS, f"{GPU_CONFIG}.ImageId", None), f"{GPU_CONFIG}.ImageId: is missing: of a system with NVIDIA's"),
        (changed(AWS, f"{GPU_CONFIG}.KeyName", None), f"{GPU_CONFIG}.KeyName: is missing: what EC2 calls"),
        (changed(AWS, f"{GPU_CONFIG}.InstanceMarketOptions", SPOT), "start machines again that `down` has ended"),
        (changed(GCP, "provider.project_id", None), "provider.project_id: is missing"),
        (changed(GCP, "available_node_types.only.node_config.acceleratorType", "v4-8"), "`provider: {type: gcp-tpu}`"),
        (changed(AZURE, "provider.resource_group", None), "provider.resource_group: is missing"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_asked(tmp_path: Path, config: Any, words: str) -> None:
    path = write(tmp_path, config, 1)
    with pytest.raises(ClusterConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:2: provider.") and words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "file", "words"),
    [
        (", node_type: gup", "launcher.yaml", "launcher.yaml has head, gpu, not 'gup'; did you mean"),
        ("", "absent.yaml", "absent.yaml cannot be read: No such file"),
        (", machines: x", "launcher.yaml", "provider.machines: no such key (allowed: type, file, node_type)"),
        (", zone: x", "launcher.yaml", "provider.zone: no such key (allowed: type, file, node_type)"),
    ],
)  # fmt: skip
def test_a_cluster_file_that_says_it_wrongly(tmp_path: Path, more: str, file: str, words: str) -> None:
    with pytest.raises(ClusterConfigError) as caught:
        load(write(tmp_path, AWS, 1, more, file))
    assert words in str(caught.value)


def test_a_chosen_node_type(tmp_path: Path) -> None:
    spec = load(write(tmp_path, changed(AWS, "available_node_types.head.max_workers", 2), 3, ", node_type: head"))
    assert instance_types(spec) == [("m5.large", 3)]


@pytest.mark.parametrize(
    ("config", "module", "command"),
    [
        (AWS, "boto3", "pip install 'spmd-launch[aws]'"),
        (GCP, "googleapiclient", "pip install google-api-python-client"),
        (AZURE, "azure.mgmt.compute", "azure-mgmt-compute"),
    ],
)
def test_without_a_clouds_package_one_line_says_what_installs_it(
    tmp_path: Path, installed: set[str], config: Any, module: str, command: str
) -> None:
    installed.remove(module)
    with pytest.raises(ClusterConfigError) as caught:
        load(write(tmp_path, config, 1))
    assert module in str(caught.value) and command in str(caught.value) and "\n" not in str(caught.value)
