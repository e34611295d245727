"""What a client does in a Ray that is not ours: `python -m cluster.on_ray plan|create|remove`, JSON in and out.

Reads one line, answers with one. `plan` looks at the nodes and chooses hosts. `create` does so too and puts our code
there; it starts nothing that lasts. `remove` ends our actors and what they have started, and removes our folders. All
answer `{"error"}` with what a person should read, and with `"gone"` where no Ray listens any more.
"""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

from cluster import place_code, processes, ray_host
from cluster.errors import ClusterError
from cluster.place_code import Code
from cluster.processes import ProcessId
from cluster.ray_join import UnreachableError, actors, joined, nodes
from cluster.ray_nodes import RayNode, choose, host_names
from cluster.record import NAMESPACE, actor_prefix, cluster_folder, write_json

FREE_TIMEOUT_S = 10.0  # what a cluster that has just gone down held is free a moment later
TASK_TIMEOUT_S = 60.0
NEEDED = (
    "jax", "jaxlib", "numpy", "tfp-nightly", "optax", "flax", "orbax-checkpoint", "arviz-base", "arviz-stats",
    "arviz-plots", "matplotlib", "scikit-learn", "h5netcdf", "h5py", "click", "rich", "pyyaml", "psutil",
)  # fmt: skip

Message = dict[str, Any]


def plan(order: Message) -> Message:
    """Chooses hosts."""
    with joined(order["address"]) as control:
        _, chosen = _choose(control, order)
    return {"hosts": host_names(chosen), "nodes": [str(node) for node in chosen]}


def create(order: Message) -> Message:
    """Chooses hosts and puts our code on them."""
    folder = cluster_folder(order["name"])
    with joined(order["address"]) as control:
        own, chosen = _choose(control, order)
        names = dict(zip((node.node_id for node in chosen), host_names(chosen), strict=True))
        looks = _look(chosen, own, folder)
        raylet = _require_shared(looks[own])
        _require_packages({names[node.node_id]: looks[node.node_id] for node in chosen})
        hosts: list[Message] = [
            {
                "name": names[node.node_id],
                "node_id": node.node_id,
                "address": node.address,
                "home": f"{looks[node.node_id]['home']}/{names[node.node_id]}",
                "is_here": node.node_id == own,
            }
            for node in chosen
        ]
        request = json.loads((folder / "request.json").read_text())
        write_json(folder / "request.json", request | {"hosts": hosts, "raylet": raylet.to_json()})
        code = ray.put(Code(order["digest"], (folder / "blobs" / order["digest"]).read_bytes()))
        places = {host["node_id"]: (_cluster_folder(host, order["name"]), order["cluster_id"], code) for host in hosts}
        _on_nodes(ray_host.place, places, names)
    return {"hosts": hosts, "raylet": raylet.to_json()}


def remove(order: Message) -> Message:
    """Ends what is ours of a cluster, and nothing else."""
    lines = []
    with joined(order["address"]) as control:
        alive = {node.node_id for node in nodes(control)}
        pids = _kill_actors(order["name"], order["cluster_id"])
        removals = {}
        for host in order["hosts"]:
            folder = _cluster_folder(host, order["name"])
            if host["node_id"] in alive:
                purge = host["home"] if order["purge"] else ""
                removals[host["node_id"]] = (folder, order["cluster_id"], pids.get(host["node_id"], []), purge)
            else:
                lines.append(f"{host['name']}: is no node of this Ray any more; {folder} stays there")
        names = {host["node_id"]: host["name"] for host in order["hosts"]}
        for node_id, answer in _on_nodes(ray_host.remove, removals, names).items():
            lines += [f"{names[node_id]}: {line}" for line in answer]
    return {"lines": lines}


def _cluster_folder(host: Mapping[str, Any], name: str) -> str:
    return f"{host['home']}/clusters/{name}"


def _require_free_name(name: str) -> None:
    """Two clients that bring up the same name would share folders on the hosts."""
    same = [actor for actor in actors() if actor.ray_namespace == NAMESPACE and actor.name.startswith(f"{name}/")]
    if same:
        raise ClusterError(
            f"there is a cluster {name!r} on this Ray already, brought up by another client (actor {same[0].name!r} on "
            f"{same[0].address.ip_address}): take another name, or `spmd-launch down {name}` where it was brought up"
        )


def _choose(control: Any, order: Message) -> tuple[str, list[RayNode]]:
    """The client's own node, and those that become hosts."""
    _require_free_name(order["name"])
    own: str = ray.get_runtime_context().get_node_id()
    return own, _choose_free(lambda: nodes(control), own, order["num_hosts"], order["spares"])


def _choose_free(look: Callable[[], Sequence[RayNode]], own: str, num_hosts: int, spares: int) -> list[RayNode]:
    deadline = time.monotonic() + FREE_TIMEOUT_S
    while True:
        try:
            return choose(look(), own, num_hosts, spares)
        except ClusterError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def _look(chosen: Sequence[RayNode], own: str, folder: Path) -> dict[str, Message]:
    """What the chosen nodes and the client's own have; the latter must see a file that is written here."""
    secret, path = secrets.token_hex(16), folder / "secret"
    path.touch(mode=0o600)
    path.write_text(secret)
    try:
        labels = {node.node_id: str(node) for node in chosen} | {own: "the node on this machine"}
        looks = _on_nodes(ray_host.look, {node_id: (NEEDED, str(path)) for node_id in labels}, labels)
    finally:
        path.unlink()
    looks[own]["sees_our_files"] = looks[own]["secret"] == secret
    return looks


def _require_shared(own: Message) -> ProcessId:
    """The supervisor will be a process of Ray's on this machine: it must be able to write where this client reads."""
    raylet = own["raylet"] and ProcessId.from_json(own["raylet"])
    if own["uid"] != os.getuid():
        raise ClusterError(f"Ray runs as user {own['user']} here: run spmd-launch as that user")
    if not own["sees_our_files"] or raylet is None or not raylet.alive():
        raise ClusterError(
            "Ray runs in another container than this command, with other files or processes: run spmd-launch in Ray's"
        )
    return raylet


def _require_packages(looks: Mapping[str, Message]) -> None:
    lacks = [f"{host}: has no {', '.join(look['missing'])}" for host, look in looks.items() if look["missing"]]
    if lacks:
        raise ClusterError(
            "Ray's Python lacks packages; install our requirements.lock on these hosts (with KubeRay: in the image):"
            "\n  " + "\n  ".join(lacks)
        )


def _kill_actors(name: str, cluster_id: str) -> dict[str, list[int]]:
    """Ends our actors of this cluster for good, the supervisor first; their pids by node."""
    prefix = actor_prefix(name, cluster_id)
    ours = [actor for actor in actors() if actor.ray_namespace == NAMESPACE and actor.name.startswith(prefix)]
    pids: dict[str, list[int]] = {}
    for actor in sorted(ours, key=lambda actor: not actor.name.endswith("/supervisor")):
        try:
            ray.kill(ray.get_actor(actor.name, namespace=NAMESPACE), no_restart=True)
        except ValueError:  # has ended meanwhile
            continue
        if actor.pid:
            pids.setdefault(actor.address.node_id.hex(), []).append(actor.pid)
    return pids


def _on_nodes(
    act: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]], labels: Mapping[str, str]
) -> dict[str, Any]:
    """Runs it on many nodes at once, on each with its arguments; it takes no CPU from anybody.

    Raises:
        ClusterError: what went wrong on which node.
    """
    task = ray.remote(num_cpus=0, max_retries=0)(act)
    running = {
        node_id: task.options(scheduling_strategy=OnNode(node_id, soft=False)).remote(*given)
        for node_id, given in arguments.items()
    }
    deadline = time.monotonic() + TASK_TIMEOUT_S
    answers, errors = {}, []
    for node_id, reference in running.items():
        try:
            answers[node_id] = ray.get(reference, timeout=max(0.0, deadline - time.monotonic()))
        except GetTimeoutError:
            errors.append(f"{labels[node_id]}: has not answered within {TASK_TIMEOUT_S:g} s")
        except RayError as error:
            errors.append(f"{labels[node_id]}: {str(error).strip().splitlines()[-1]}")
    if errors:
        raise ClusterError("\n".join(errors))
    return answers


def main() -> int:
    for module in (ray_host, place_code, processes):  # the nodes do not have them
        cloudpickle.register_pickle_by_value(module)
    order = json.loads(sys.stdin.readline())
    try:
        answer = {"plan": plan, "create": create, "remove": remove}[sys.argv[1]](order)
    except UnreachableError as error:
        answer = {"error": str(error), "gone": True}
    except ClusterError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
