"""Ray's options for our actors: their names, where they go, what they reserve, what they find in their environment."""

from pathlib import Path
from typing import Any

from cluster.accelerators import Accelerator
from cluster.machine import NETWORK_LEASE_S
from cluster.processes import MARKER
from cluster.ray_nodes import AGENT_CPUS, SUPERVISOR_CPUS
from cluster.record import NAMESPACE, Cluster, Host


class ActorOptions:
    """Of one cluster's actors, all of which are detached, and started again by Ray when they end.

    Args:
        ray: the module, which has joined the cluster.
        cluster: where they run.
        code_digest: of the code that they run.
    """

    def __init__(self, ray: Any, cluster: Cluster, code_digest: str):
        self._ray = ray
        self._cluster = cluster
        self._code_digest = code_digest
        self._is_ours = cluster.spec.provider.owns_ray

    def agent(self, host: Host) -> dict[str, Any]:
        """Of that host's agent."""
        spec = self._cluster.spec
        if spec.provider.shares_disk:  # emulated: a node that has died does not come back, and Ray says so at once
            place = self._on_node(host.node_id)
        elif self._is_ours:  # by its name, not its node's id: a host that has joined again is another node
            place = {"label_selector": {"spmd-launch/host": host.name}}
        else:
            place = self._on_node(host.node_id) | self._our_code(Path(host.folder).parents[1])
        return self._common(f"agent:{host.name}", AGENT_CPUS) | place | _all_of_host(self._cluster.spec.hardware)

    def supervisor(self) -> dict[str, Any]:
        """Of the supervisor."""
        node_id = self._head()
        offered = next(node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["NodeID"] == node_id)
        return self._common("supervisor", min(SUPERVISOR_CPUS, offered)) | self._on_head()

    def keeper(self) -> dict[str, Any]:
        """Of the keeper of checkpoints."""
        return self._common("keeper", 0.0) | self._on_head() | {"max_task_retries": -1}

    def _common(self, role: str, cpus: float) -> dict[str, Any]:
        return {
            "name": self._cluster.actor_name(role),
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "max_restarts": -1,
            "max_concurrency": 1000,
            "num_cpus": cpus,
        }

    def _on_head(self) -> dict[str, Any]:
        place = self._on_node(self._head())
        return place if self._is_ours else place | self._our_code(self._cluster.folder)

    def _head(self) -> str:
        """The first host, or in a Ray that is not ours the client's own node, where this runs."""
        node_id: str = (
            self._cluster.hosts[0].node_id if self._is_ours else self._ray.get_runtime_context().get_node_id()
        )
        return node_id

    def _on_node(self, node_id: str) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}

    def _our_code(self, folder: Path) -> dict[str, Any]:
        """Where Ray is not ours: what its nodes would have in their environment if it were.

        Args:
            folder: of the cluster, where the actor will be.
        """
        environment = {
            "PYTHONPATH": str(folder / "code" / self._code_digest),
            "SPMD_LAUNCH_HOME": str(folder.parents[1]),
            "SPMD_LAUNCH_LEASE_S": NETWORK_LEASE_S,
            MARKER: self._cluster.cluster_id,
        }
        return {"runtime_env": {"env_vars": environment}}


def _all_of_host(accelerator: Accelerator) -> dict[str, Any]:
    """What an agent takes of its host: all accelerators, so that nobody else on the same Ray is given one."""
    if accelerator.kind == "gpu":
        return {"num_gpus": accelerator.chips_per_host}
    return {"resources": {"TPU": accelerator.chips_per_host}} if accelerator.kind == "tpu" else {}
