"""The supervisor's handles of the agents, also of those that are gone for ever."""

import asyncio
from typing import Any

import ray
from ray.exceptions import ActorDiedError

from cluster.record import NAMESPACE, Cluster


class GoneAgent:
    """In the place of a handle that Ray has no more: it forgets an actor that may run on one node alone, which died.

    Its methods are called as a handle's are, and raise ActorDiedError, as those of a handle from before do.
    """

    def __getattr__(self, method: str) -> "GoneAgent":
        return self

    def remote(self, *_: Any) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_exception(ActorDiedError())
        answer.exception()  # not everybody who calls waits for the answer, and asyncio would complain
        return answer


def agent_handles(cluster: Cluster) -> dict[str, Any]:
    """By host, of each host of the cluster."""
    return {host.name: _handle(cluster, host.name) for host in cluster.hosts}


def _handle(cluster: Cluster, host: str) -> Any:
    try:
        return ray.get_actor(cluster.actor_name(f"agent:{host}"), namespace=NAMESPACE)
    except ValueError:  # Ray knows no actor of that name
        return GoneAgent()
