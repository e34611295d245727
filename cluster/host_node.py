"""A Ray node with nothing but its raylet (and, on the head, the control service), which has what it is told to have.

By default each node also starts two Python processes beside the raylet: a dashboard agent, which serves nothing where
Ray is installed without its dashboard, and an agent that builds runtime environments, which we never ask for. Each
takes a second of a core, and the raylet waits for them: two hosts need 4.4 s with them and 0.5 s without. A raylet ends
when one of them does, so there must be something in their place.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ray._private import services
from ray._private.node import Node
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._raylet import (  # type: ignore[attr-defined]  # compiled, without stubs of these
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    RUNTIME_ENV_AGENT_PORT_NAME,
    persist_port,
)

IDLE_AGENT = f"/bin/sh {Path(__file__).parent / 'idle_agent.sh'}"
AGENT_COMMANDS = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
NOT_SERVED = -1  # what Ray's own agent leaves as its port where it serves nothing
NOBODY = 1  # a port on which nothing listens: the raylet must have one for runtime environments


class HostNode(Node):
    """Several may start at once, from a thread each."""

    _starting = threading.Lock()

    def start_api_server(self, **_: Any) -> None:
        """Even with the dashboard off it takes a second, and it serves nobody."""

    def get_resource_and_label_spec(self) -> ResourceAndLabelSpec:
        """What the node was told that it has. Ray would look for accelerators itself, in this process's environment,
        which several nodes share, and refuse those that are emulated."""
        if self._resource_and_label_spec is None:  # type: ignore[has-type]
            asked = self._ray_params
            spec = ResourceAndLabelSpec(
                asked.num_cpus, asked.num_gpus, asked.memory, asked.object_store_memory, asked.resources, asked.labels
            )
            spec._resolve_resources(is_head=self.head, node_ip_address=self.node_ip_address)
            spec._resolve_labels(None)
            spec._resolve_memory_resources(self.resource_isolation_config)
            spec._is_resolved = True
            self._resource_and_label_spec = spec
        return self._resource_and_label_spec

    def start_raylet(self, *args: Any, **options: Any) -> None:
        """Starts the raylet with idle agents, whose ports are told in their stead."""
        for name in (DASHBOARD_AGENT_LISTEN_PORT_NAME, METRICS_AGENT_PORT_NAME, METRICS_EXPORT_PORT_NAME):
            persist_port(self._session_dir, self._node_id, name, NOT_SERVED)
        persist_port(self._session_dir, self._node_id, RUNTIME_ENV_AGENT_PORT_NAME, NOBODY)
        with self._starting, _idle_agents():
            super().start_raylet(*args, **options)


@contextlib.contextmanager
def _idle_agents() -> Iterator[None]:
    """While it lasts, a raylet that is started has idle agents: Ray has no option for it."""
    start = services.start_ray_process

    def start_with_idle_agents(command: Sequence[str], *args: Any, **options: Any) -> Any:
        return start([_idle(word) for word in command], *args, **options)

    services.start_ray_process = start_with_idle_agents
    try:
        yield
    finally:
        services.start_ray_process = start


def _idle(word: str) -> str:
    option = next((option for option in AGENT_COMMANDS if word.startswith(option)), None)
    return option + IDLE_AGENT if option else word
