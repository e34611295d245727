"""Runs on the head's machine during `up`: `python -m launcher.start_actors`, JSON in and out.

Reads one line, `{"name", "cluster", "code_digest"}`, when all Ray nodes are up; keeps the cluster's record; starts one
agent a host and the supervisor; answers with `{"facts"}` of all hosts, or `{"error"}`. It ends when its input does.
"""

import asyncio
import dataclasses
import json
import os
import sys
import threading
from typing import Any

from cluster.record import Cluster
from launcher.attempt import HostFacts
from launcher.environment import NAMESPACE
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
            f"cluster {cluster.name!r}: not all agents answered within {ANSWER_TIMEOUT_S:g} s; "
            f"Ray's logs were in {cluster.run_folder}"
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
    from launcher.keeper import KeeperActor
    from launcher.supervisor import Supervisor

    spec = cluster.spec
    lasting = {"lifetime": "detached", "max_restarts": -1, "namespace": NAMESPACE, "max_concurrency": 1000}
    on_head = OnNode(cluster.hosts[0].node_id, soft=False)
    keeper = None
    if spec.head_disk_is_private:
        keeper = (
            ray.remote(KeeperActor)
            .options(name="keeper", num_cpus=0, scheduling_strategy=on_head, max_task_retries=-1, **lasting)
            .remote()
        )
    agents = [
        ray.remote(Agent)
        .options(
            name=f"agent:{host.name}",
            num_cpus=1,
            # By its name, not its node's id: a host that has joined again is another node.
            label_selector={"spmd-launch/host": host.name},
            **lasting,
        )
        .remote(
            host.name,
            host.folder,
            host.address,
            spec.accelerator,
            spec.devices_per_host,
            dict(spec.env),
            code_digest,
            keeper,
        )
        for host in cluster.hosts
    ]
    supervisor = (
        ray.remote(Supervisor)
        .options(name="supervisor", num_cpus=1, scheduling_strategy=on_head, **lasting)
        .remote(cluster.name)
    )
    serving = supervisor.ready.remote()
    archive = ray.put((cluster.folder / "blobs" / code_digest).read_bytes())
    await asyncio.gather(*(agent.put_code.remote(code_digest, archive) for agent in agents))
    facts, _, _ = await asyncio.gather(gather_facts(agents), probe_storage(cluster, agents), serving)
    for agent in agents:
        agent.fill_standby.remote()
    return facts


def _end_with_client() -> None:
    """The client keeps its end open until it has the answer; if it is gone, so is what was begun, maybe Ray too."""
    os.read(sys.stdin.fileno(), 1)  # not by `sys.stdin`, whose lock would be held when this process ends
    os._exit(1)


def main() -> int:
    import ray  # noqa: F401  # now, while the hosts start

    order = json.loads(sys.stdin.readline() or "{}")
    if not order:
        return 1  # taken back
    threading.Thread(target=_end_with_client, daemon=True).start()
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
