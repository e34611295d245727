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

from cluster.record import NAMESPACE, Cluster
from launcher.actor_options import ActorOptions
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

    The environment names the token: the cluster's own (`cluster.machine.ray_environment`), or the user's for their Ray.
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
    from launcher.agent import Agent
    from launcher.keeper import KeeperActor
    from launcher.supervisor import Supervisor

    spec, options = cluster.spec, ActorOptions(ray, cluster, code_digest)

    def start(actor: type, options: dict[str, Any], *arguments: Any) -> Any:
        return ray.remote(actor).options(**options).remote(*arguments)

    keeper = None
    if spec.head_disk_is_private:
        keeper = start(KeeperActor, options.keeper(), spec.provider.owns_ray)
    agents = [
        start(
            Agent,
            options.agent(host),
            host.name,
            host.folder,
            spec.jax_hardware.kind,
            spec.devices_per_host,
            dict(spec.env),
            code_digest,
            spec.provider.owns_ray,
            keeper,
        )
        for host in cluster.hosts
    ]
    names = [host.name for host in cluster.hosts]
    supervisor = start(Supervisor, options.supervisor(), cluster.name)
    serving = supervisor.ready.remote()
    archive = ray.put((cluster.folder / "blobs" / code_digest).read_bytes())
    await asyncio.gather(*(agent.put_code.remote(code_digest, archive) for agent in agents))
    storage = probe_storage(spec, dict(zip(names, agents, strict=True)))
    facts, _, _ = await asyncio.gather(gather_facts(agents), storage, serving)
    for agent in agents:
        agent.fill_standby.remote()
    await supervisor.begin.remote()
    return facts


def _not_started(cluster: Cluster) -> str:
    """Those of our actors that Ray has not placed: others have been quicker to take the CPU that was free."""
    from cluster.ray_join import actors, state_name

    ours = [a for a in actors() if a.ray_namespace == NAMESPACE and a.name.startswith(cluster.actor_name(""))]
    waiting = [f"{actor.name} is {state_name(actor)}" for actor in ours if state_name(actor) != "ALIVE"]
    return f" ({', '.join(waiting)})" if waiting else ""


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
