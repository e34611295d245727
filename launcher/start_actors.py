"""Runs on the head's machine during `up`: `python -m launcher.start_actors`, JSON in and out.

Reads one line, `{"name", "cluster", "code_digest"}`, when all Ray nodes are up; keeps the cluster's record; starts one
agent a host and the supervisor; answers with `{"facts"}` of all hosts, or `{"error"}`.
"""

import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from cluster.processes import MARKER
from cluster.ray_nodes import AGENT_CPUS, SUPERVISOR_CPUS
from cluster.record import NAMESPACE, Cluster
from launcher.attempt import HostFacts
from launcher.errors import FailureError
from launcher.parity import gather_facts
from launcher.storage import probe_storage

ANSWER_TIMEOUT_S = 120.0


def start_actors(cluster: Cluster, code_digest: str) -> list[HostFacts]:
    """Starts one agent a host and the supervisor, and hears from all of them.

    Raises:
        FailureError: not all answered, or a host does not reach the storage.
    """
    ray = connect_ray(cluster)
    try:
        return asyncio.run(asyncio.wait_for(_start(ray, cluster, code_digest), ANSWER_TIMEOUT_S))
    except TimeoutError as error:
        raise FailureError(
            f"cluster {cluster.name!r}: not all agents answered within {ANSWER_TIMEOUT_S:g} s{_not_started(cluster)}; "
            + (f"Ray's logs were in {cluster.run_folder}" if cluster.spec.provider.owns_ray else "see Ray's own logs")
        ) from error
    finally:
        ray.shutdown()


def connect_ray(cluster: Cluster) -> Any:
    """Joins the cluster as a driver, at its explicit address; returns the module `ray`.

    The environment names the cluster's own token: see `cluster.machine.ray_environment`.
    """
    import ray

    ray.init(
        address=cluster.gcs_address,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level="error",
        configure_logging=False,
    )
    return ray


async def _start(ray: Any, cluster: Cluster, code_digest: str) -> list[HostFacts]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

    from launcher.agent import Agent
    from launcher.supervisor import Supervisor

    spec, owns_ray = cluster.spec, cluster.spec.provider.owns_ray
    lasting = {"lifetime": "detached", "max_restarts": -1, "namespace": NAMESPACE, "max_concurrency": 1000}
    agents = [
        ray.remote(Agent)
        .options(
            name=cluster.actor_name(f"agent:{host.name}"),
            num_cpus=AGENT_CPUS,
            scheduling_strategy=OnNode(host.node_id, soft=False),
            **lasting,
            **({} if owns_ray else _our_code(cluster, Path(host.folder).parents[1], code_digest)),
        )
        .remote(
            host.name,
            host.folder,
            host.address,
            spec.accelerator,
            spec.devices_per_host,
            dict(spec.env),
            code_digest,
            owns_ray,
        )
        for host in cluster.hosts
    ]
    head = cluster.hosts[0].node_id if owns_ray else ray.get_runtime_context().get_node_id()
    supervisor = (
        ray.remote(Supervisor)
        .options(
            name=cluster.actor_name("supervisor"),
            num_cpus=min(SUPERVISOR_CPUS, _cpus(ray, head)),
            scheduling_strategy=OnNode(head, soft=False),
            **lasting,
            **({} if owns_ray else _our_code(cluster, cluster.folder, code_digest)),
        )
        .remote(cluster.name)
    )
    serving = supervisor.ready.remote()
    archive = ray.put((cluster.folder / "blobs" / code_digest).read_bytes())
    await asyncio.gather(*(agent.put_code.remote(code_digest, archive) for agent in agents))
    facts, _, _ = await asyncio.gather(gather_facts(agents), probe_storage(cluster, agents), serving)
    for agent in agents:
        agent.fill_standby.remote()
    return facts


def _our_code(cluster: Cluster, folder: Path, code_digest: str) -> dict[str, Any]:
    """An actor's options where Ray is not ours: what hosts of our own have in their environment.

    Args:
        folder: of the cluster, where the actor will be.
    """
    environment = {
        "PYTHONPATH": str(folder / "code" / code_digest),
        "SPMD_LAUNCH_HOME": str(folder.parents[1]),
        MARKER: cluster.cluster_id,
    }
    return {"runtime_env": {"env_vars": environment}}


def _not_started(cluster: Cluster) -> str:
    """Those of our actors that Ray has not placed: others have been quicker to take the CPU that was free."""
    from cluster.ray_join import actors, state_name

    ours = [a for a in actors() if a.ray_namespace == NAMESPACE and a.name.startswith(cluster.actor_name(""))]
    waiting = [f"{actor.name} is {state_name(actor)}" for actor in ours if state_name(actor) != "ALIVE"]
    return f" ({', '.join(waiting)})" if waiting else ""


def _cpus(ray: Any, node_id: str) -> float:
    """How many a node offers in all."""
    node = next(node for node in ray.nodes() if node["NodeID"] == node_id)
    cpus: float = node["Resources"].get("CPU", 0.0)
    return cpus


def main() -> int:
    import ray  # noqa: F401  # now, while the hosts start

    order = json.loads(sys.stdin.readline() or "{}")
    if not order:
        return 1  # taken back
    cluster = Cluster.from_json(order["name"], order["cluster"])
    cluster.save()
    try:
        answer: dict[str, Any] = {
            "facts": [dataclasses.asdict(fact) for fact in start_actors(cluster, order["code_digest"])]
        }
    except FailureError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
