"""A launcher's file as Ray's launcher is to take it for one cluster of ours."""

import copy
from typing import Any

from cluster import aws

Order = dict[str, Any]  # see `cluster.on_launcher`


def bootstrapped(order: Order) -> dict[str, Any]:
    """The file completed as Ray does it: networks, keys and groups of the cloud are looked up, or made.

    Ray's cache of this in the common /tmp is not used: it holds what the file says of credentials.
    """
    from ray.autoscaler._private.providers import _get_node_provider_cls
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(_reduced(order))
    validate_config(config)
    is_aws = order["machines"]["cloud"] == "aws"
    node_config = config["available_node_types"][order["machines"]["node_type"]]["node_config"]
    if is_aws:
        aws.mark_volumes(node_config, order["tags"])
        own_profile = node_config.setdefault("IamInstanceProfile", aws.NO_PROFILE) is not aws.NO_PROFILE
    done: dict[str, Any] = _get_node_provider_cls(config["provider"]).bootstrap_config(config)
    if is_aws and not own_profile:
        del done["available_node_types"][order["machines"]["node_type"]]["node_config"]["IamInstanceProfile"]
    return done


def ready_to_list(order: Order) -> dict[str, Any]:
    """What is enough to list machines: nothing is looked up, and nothing is made."""
    return _reduced(order)


def ready_to_end(order: Order) -> dict[str, Any]:
    """What is enough to end them; on Azure also what else was made for them, which Ray finds as it makes it."""
    return _reduced(order) if order["machines"]["cloud"] != "azure" else bootstrapped(order)


def _reduced(order: Order) -> dict[str, Any]:
    """The file with the one node type of our hosts, under our cluster's name, without what Ray would run on them.

    Machines are ended at `down`, not stopped: a stopped one's disk costs, and so does forgetting it.
    """
    config, node_type = copy.deepcopy(order["config"]), order["machines"]["node_type"]
    chosen = config["available_node_types"][node_type]
    config["provider"]["cache_stopped_nodes"] = False
    return config | {
        "cluster_name": order["cluster_name"],
        "max_workers": max(1, len(order["names"])),
        "available_node_types": {
            node_type: {
                "node_config": chosen["node_config"],
                "resources": chosen.get("resources") or {"CPU": 1},
                "min_workers": 0,
                "max_workers": max(1, len(order["names"])),
            }
        },
        "head_node_type": node_type,
    }
