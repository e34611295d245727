"""The small interface behind which hosts are made. A new kind of machine is a new provider, nothing else."""

from collections.abc import Callable, Mapping
from typing import Protocol

from cluster.record import Cluster
from cluster.spec import ClusterSpec


class Provider(Protocol):
    """Makes hosts that are Ray nodes, and unmakes them. Every method may be called again after it was interrupted."""

    def create(self, spec: ClusterSpec, node_env: Mapping[str, str], say: Callable[[str], None]) -> Cluster:
        """Starts all hosts, in parallel where it can, and records them.

        Args:
            spec: what is asked for.
            node_env: variables for the Ray processes of every host.
            say: receives one line for each thing a waiting person wants to know.

        Raises:
            ClusterError: what failed and on which host; whatever was half made is gone again.
        """
        ...

    def delete(self, name: str) -> list[str]:
        """Ends every process of the cluster and removes what it wrote outside jobs and checkpoints.

        Returns:
            One line for each thing that had to be forced; empty after a clean end.
        """
        ...

    def ray_environment(self, name: str) -> dict[str, str]:
        """Variables that a process needs before it imports Ray to reach this cluster, and no other."""
        ...


def provider_for(kind: str) -> Provider:
    """The provider of that name, as in `provider: {type: ...}`."""
    from cluster.local import LocalProvider  # here, because the providers import this module

    return {"local": LocalProvider}[kind]()
