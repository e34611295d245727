"""Drivers that ask a real Ray what its hosts have: `python -m tests.cluster.placement_programs NAME ADDRESS`."""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray.util.tpu import slice_placement_group


def slices() -> dict[str, Any]:
    """What hosts say that they have, and on which Ray puts two slices, each worker by its label."""
    nodes = {node["NodeID"]: node for node in ray.nodes()}
    names = {node_id: node["Labels"]["spmd-launch/host"] for node_id, node in nodes.items()}
    chosen = []
    for _ in range(2):
        taken = slice_placement_group(topology="2x2x2", accelerator_version="v4")
        ray.get(taken.placement_group.ready(), timeout=60)
        bundles = placement_group_table(taken.placement_group)["bundles_to_node_id"]
        chosen.append(sorted(names[node_id] for node_id in bundles.values()))
    return {
        "labels": {names[node_id]: node["Labels"] for node_id, node in nodes.items()},
        "resources": {names[node_id]: node["Resources"] for node_id, node in nodes.items()},
        "chosen": chosen,
        "left": _chips_left(),
        "environment": ray.get(_environment("TPU_", taken.placement_group)),
    }


def _chips_left(patience_s: float = 15.0) -> float:
    """What Ray has to give once its control service has heard from all nodes, which takes a moment."""
    deadline = time.monotonic() + patience_s
    while (left := ray.available_resources().get("TPU", 0.0)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return float(left)


def gpus() -> dict[str, Any]:
    """What a host says that it has, and what a process sees that holds all of it."""
    (node,) = ray.nodes()

    @ray.remote(num_gpus=2, num_cpus=0, accelerator_type="H100")
    def look() -> tuple[list[str], str | None]:
        return ray.get_runtime_context().get_accelerator_ids()["GPU"], os.environ.get("CUDA_VISIBLE_DEVICES")

    return {"labels": node["Labels"], "resources": node["Resources"], "sees": ray.get(look.remote(), timeout=60)}


def _environment(prefix: str, group: Any) -> Any:
    @ray.remote(num_cpus=0, resources={"TPU": 4})
    def look() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.startswith(prefix)}

    place = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
    return look.options(scheduling_strategy=place).remote()


PROGRAMS: dict[str, Callable[[], dict[str, Any]]] = {"slices": slices, "gpus": gpus}

if __name__ == "__main__":
    ray.init(address=sys.argv[2], log_to_driver=False, logging_level="error", configure_logging=False)
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
