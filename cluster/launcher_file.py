"""Reads a file that `ray up` takes: which machines it describes, and what of it does not fit here, in words. Pure."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from cluster.access import USER
from cluster.errors import ClusterConfigError, nearest
from cluster.launcher_spec import Machines

KEY = "provider.file"
Config = Mapping[str, Any]

# What Ray asks each cloud with: a module, and what installs it.
_CLIENTS = {
    "aws": ("boto3", "pip install 'spmd-launch[aws]'"),
    "gcp": ("googleapiclient", "pip install google-api-python-client"),
    "azure": ("azure.mgmt.compute", "pip install azure-cli-core azure-identity azure-mgmt-compute azure-mgmt-network "
              "azure-mgmt-resource msrestazure"),
}  # fmt: skip
_INSTEAD = {
    "local": "machines that are there already are `provider: {type: ssh, hosts: [...]}`",
    "kuberay": "a Ray that runs on Kubernetes is `provider: {type: ray, address: HOST:PORT}`",
}
MAX_NAMESPACE = 22  # with a cluster's name it goes into a label; Google Cloud takes 63 characters, others more


def with_machines(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The values of a cluster file, completed with what the launcher's file tells.

    Args:
        values: with `provider: {type: ray-launcher}`.
        folder: of the cluster file; a relative `file` is meant from there.

    Raises:
        ClusterConfigError: the launcher's file is missing, or does not fit; the cloud's client is not installed.
    """
    provider = values["provider"]
    if "machines" in provider:
        raise ClusterConfigError("provider.machines", "no such key (allowed: type, file, node_type)")
    if not isinstance(provider.get("file"), str):
        raise ClusterConfigError(KEY, "must be the file that `ray up` takes, such as aws.yaml")
    path = (folder / Path(provider["file"]).expanduser()).resolve()
    config = read(path)
    machines = machines_of(config, path.name, provider.get("node_type"))
    _require_client(machines.cloud)
    return values | {"provider": {**provider, "file": str(path), "machines": machines}}


def read(path: Path) -> dict[str, Any]:
    """What the file says.

    Raises:
        ClusterConfigError: it cannot be read.
    """
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterConfigError(KEY, f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ClusterConfigError(KEY, f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise ClusterConfigError(KEY, f"{path} must be keys and values, as `ray up` takes them")
    return config


def digest(config: Config) -> str:
    """Of what a file says, however it is written."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:16]


def machines_of(config: Config, name: str, node_type: object) -> Machines:
    """The machines that a launcher's file describes.

    Args:
        config: what the file says.
        name: of the file, for errors.
        node_type: as the cluster file says; None: the one that its workers are of.

    Raises:
        ClusterConfigError: what does not fit, and what would.
    """

    def refuse(key: str, problem: str) -> ClusterConfigError:
        return ClusterConfigError(KEY, f"{name}: {key}: {problem}")

    cloud = _cloud(config, refuse)
    provider = config["provider"]
    region_key = "location" if cloud == "azure" else "region"
    for key in ("cluster_name", f"provider.{region_key}", "auth.ssh_user", *_also_needed(cloud)):
        value = _at(config, key)
        if not isinstance(value, str) or not value:
            raise refuse(key, "is missing" if value is None else f"must be text, not {value!r}")
    if not re.fullmatch(USER, config["auth"]["ssh_user"]):
        raise refuse("auth.ssh_user", f"must be a user's name, not {config['auth']['ssh_user']!r}")
    if len(config["cluster_name"]) > MAX_NAMESPACE:
        raise refuse("cluster_name", f"must be at most {MAX_NAMESPACE} characters: it goes into labels")
    _refuse_what_is_not_ours(config, refuse)
    chosen = _choose(config, node_type, name, refuse)
    node_config = _at(config, "available_node_types")[chosen].get("node_config")
    if not isinstance(node_config, dict):
        raise refuse(f"available_node_types.{chosen}.node_config", "is missing: what the cloud is asked for")
    _CHECKS[cloud](config, node_config, f"available_node_types.{chosen}.node_config", refuse)
    return Machines(
        cloud=cloud,
        region=provider[region_key],
        namespace=config["cluster_name"],
        node_type=chosen,
        machine_type=_at(node_config, _MACHINE_TYPE[cloud]) or "",
        spot=_is_spot(cloud, node_config),
        max_hosts=_max_hosts(config, chosen, refuse),
        user=config["auth"]["ssh_user"],
        internal_ips=provider.get("use_internal_ips") is True,
        digest=digest(config),
    )


def setup_commands(config: Config, node_type: str) -> list[str]:
    """The file's own commands for its workers, in Ray's order; Ray's defaults, which install Ray, are left out."""
    own = _at(config, "available_node_types")[node_type].get("worker_setup_commands")
    later = config.get("worker_setup_commands") if own is None else own
    lists = (config.get("initialization_commands"), config.get("setup_commands"), later)
    return [command for commands in lists for command in commands or ()]


Refuse = Callable[[str, str], ClusterConfigError]
_MACHINE_TYPE = {"aws": "InstanceType", "gcp": "machineType", "azure": "azureParameters.vmSize"}


def _at(config: Config, path: str) -> Any:
    """What stands at a dotted key; None where there is nothing."""
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _cloud(config: Config, refuse: Refuse) -> str:
    found = _at(config, "provider.type")
    if found in _CLIENTS:
        return str(found)
    hint = f"; {_INSTEAD[found]}" if found in _INSTEAD else nearest(str(found), _CLIENTS)
    raise refuse("provider.type", f"must be one of {', '.join(_CLIENTS)}, not {found!r}{hint}")


def _also_needed(cloud: str) -> tuple[str, ...]:
    return {
        "aws": (),
        "gcp": ("provider.project_id", "provider.availability_zone"),
        "azure": ("provider.resource_group", "auth.ssh_private_key"),
    }[cloud]


def _refuse_what_is_not_ours(config: Config, refuse: Refuse) -> None:
    docker = config.get("docker") or {}
    if not isinstance(docker, dict) or any(docker.get(key) for key in ("image", "head_image", "worker_image")):
        raise refuse("docker", "is not used here: say `python: image:NAME` in the cluster file instead")
    for key in ("file_mounts", "cluster_synced_files"):
        if config.get(key):
            raise refuse(key, "is not used here: a job brings its files (`run` sends the folder); leave it empty")
    if _at(config, "auth.ssh_proxy_command"):
        raise refuse("auth.ssh_proxy_command", "is not used here: say ProxyCommand or ProxyJump in ~/.ssh/config")
    if "available_node_types" not in config and ("head_node" in config or "worker_nodes" in config):
        raise refuse("head_node", "is of Ray before 2.0: say available_node_types")


def _choose(config: Config, asked: object, name: str, refuse: Refuse) -> str:
    """The node type of all hosts: an SPMD program wants them alike."""
    types = config.get("available_node_types")
    if not isinstance(types, dict) or not types or not all(isinstance(value, dict) for value in types.values()):
        raise refuse("available_node_types", "is missing: say which machines there are")
    if asked is not None:
        if asked not in types:
            hint = nearest(str(asked), types)
            raise ClusterConfigError(
                "provider.node_type", f"{name} has {', '.join(map(str, types))}, not {asked!r}{hint}"
            )
        return str(asked)
    head = config.get("head_node_type")
    if head not in types:
        raise refuse("head_node_type", f"must be one of {', '.join(map(str, types))}, not {head!r}")
    workers = [key for key, value in types.items() if key != head and value.get("max_workers") != 0]
    if len(workers) > 1:
        raise ClusterConfigError(
            "provider.node_type", f"{name} has several ({', '.join(map(str, workers))}): say which one all hosts are of"
        )
    return str(workers[0] if workers else head)


def _max_hosts(config: Config, chosen: str, refuse: Refuse) -> int:
    """Ray counts the head apart; here it is one of the hosts."""
    is_head = chosen == config.get("head_node_type")
    whole = config.get("max_workers", 2)  # as Ray
    own = config["available_node_types"][chosen].get("max_workers", 0 if is_head else whole)
    for key, value in (("max_workers", whole), (f"available_node_types.{chosen}.max_workers", own)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise refuse(key, f"must be a whole number, not {value!r}")
    return min(whole, own) + is_head


def _check_aws(config: Config, node_config: Config, key: str, refuse: Refuse) -> None:
    if "LaunchTemplate" not in node_config:
        _require(node_config, "InstanceType", key, refuse, "such as p5.48xlarge")
        why = "of a system with NVIDIA's driver and python3; the one that Ray would take is too old for JAX on GPUs"
        _require(node_config, "ImageId", key, refuse, why)
    if _at(config, "auth.ssh_private_key") and not {"KeyName", "UserData"} & set(node_config):
        raise refuse(f"{key}.KeyName", "is missing: what EC2 calls the public half of auth.ssh_private_key")
    market = _at(node_config, "InstanceMarketOptions.SpotOptions.SpotInstanceType")
    if market == "persistent":
        problem = "persistent would have AWS start machines again that `down` has ended: say one-time"
        raise refuse(f"{key}.InstanceMarketOptions.SpotOptions.SpotInstanceType", problem)


def _check_gcp(config: Config, node_config: Config, key: str, refuse: Refuse) -> None:
    if "acceleratorType" in node_config or "acceleratorConfig" in node_config:
        raise refuse(f"{key}.acceleratorType", "is of a TPU: these are `provider: {type: gcp-tpu}`")
    _require(node_config, "machineType", key, refuse, "such as a3-highgpu-8g")


def _check_azure(config: Config, node_config: Config, key: str, refuse: Refuse) -> None:
    vm = node_config.get("azureParameters")
    if not isinstance(vm, dict):
        raise refuse(f"{key}.azureParameters", "is missing")
    _require(vm, "vmSize", f"{key}.azureParameters", refuse, "such as Standard_ND96isr_H100_v5")


_CHECKS = {"aws": _check_aws, "gcp": _check_gcp, "azure": _check_azure}


def _require(config: Config, key: str, where: str, refuse: Refuse, what: str) -> None:
    if not isinstance(config.get(key), str) or not config[key]:
        raise refuse(f"{where}.{key}", f"is missing: {what}")


def _is_spot(cloud: str, node_config: Config) -> bool:
    if cloud == "aws":
        return bool(_at(node_config, "InstanceMarketOptions.MarketType") == "spot")
    if cloud == "azure":
        return str(_at(node_config, "azureParameters.priority")).lower() == "spot"
    scheduling = node_config.get("scheduling") or {}
    parts = scheduling if isinstance(scheduling, list) else [scheduling]
    return any(part.get("preemptible") is True or part.get("provisioningModel") == "SPOT" for part in parts)


def _require_client(cloud: str) -> None:
    module, command = _CLIENTS[cloud]
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # of a package that holds it
        found = None
    if found is None:
        raise ClusterConfigError("provider.type", f"asking {cloud} for machines needs {module}: {command}")
