"""Joins a Ray that is not ours, as a driver. What can be wrong is found first: Ray's own words for it are cryptic.

Ray ends a process that it cannot connect, so this runs in a process of its own: see `cluster.on_ray`.
"""

import contextlib
import json
import os
import platform
import socket
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import services
from ray._private.utils import check_version_info
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, without stubs
from ray.core.generated import gcs_pb2
from ray.exceptions import AuthenticationError, RayError

from cluster.errors import ClusterError
from cluster.ray_nodes import RayNode
from cluster.record import NAMESPACE

REACH_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 20.0
ALIVE = 0  # of a node, in Ray's protocol


class UnreachableError(ClusterError):
    """Nothing listens there."""


@contextlib.contextmanager
def joined(address: str) -> Iterator[Any]:
    """Joins the Ray at `address`; gives its nodes' protocol messages.

    Raises:
        UnreachableError: nothing listens there.
        ClusterError: it is no Ray, of another version, refuses us, or has no node on this machine.
    """
    _require_listener(address)
    try:
        control = GcsClient(address=address)
        metadata = control.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=ANSWER_TIMEOUT_S)
        _require_same_versions(address, json.loads(metadata or b"{}"))
        infos = control.get_all_node_info(timeout=ANSWER_TIMEOUT_S).values()
        _require_node_here(address, [info for info in infos if info.state == ALIVE])
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="error",
            configure_logging=False,
        )
    except AuthenticationError as error:
        raise ClusterError(_refused(address)) from error
    except ClusterError:
        raise
    except (RayError, ConnectionError, RuntimeError) as error:
        raise ClusterError(
            f"what listens at {address} does not answer as Ray's control service (GCS) does: {error}; "
            f"is it another of Ray's ports?"
        ) from error
    try:
        yield control
    finally:
        ray.shutdown()


def nodes(control: Any) -> list[RayNode]:
    """All nodes that are alive, with what others have reserved of them."""
    from ray._private import state

    free = state.available_resources_per_node()
    held: dict[str, list[str]] = {}
    for actor in actors():
        cpus = actor.required_resources.get("CPU", 0.0)
        if cpus and actor.state == gcs_pb2.ActorTableData.ALIVE:
            name = f" {actor.name!r}" if actor.name else ""
            held.setdefault(actor.address.node_id.hex(), []).append(
                f"actor {actor.class_name}{name} (pid {actor.pid}, namespace {actor.ray_namespace}): {cpus:g}"
            )
    return [
        RayNode(
            node_id=info.node_id.hex(),
            address=info.node_manager_address,
            hostname=info.node_manager_hostname,
            is_head=info.is_head_node,
            cpus=info.resources_total.get("CPU", 0.0),
            free_cpus=free.get(info.node_id.hex(), {}).get("CPU", 0.0),
            holders=tuple(held.get(info.node_id.hex(), ())),
        )
        for info in control.get_all_node_info(timeout=ANSWER_TIMEOUT_S).values()
        if info.state == ALIVE
    ]


def actors() -> list[Any]:
    """Ray's record of every actor that has not ended, anybody's."""
    from ray._private import state

    table = state.state._connect_and_get_accessor().get_actor_table(None, None)
    found = [gcs_pb2.ActorTableData.FromString(entry) for entry in table]
    return [actor for actor in found if actor.state != gcs_pb2.ActorTableData.DEAD]


def state_name(actor: Any) -> str:
    """`ALIVE`, `PENDING_CREATION`, and so on."""
    name: str = gcs_pb2.ActorTableData.ActorState.Name(actor.state)
    return name


def _require_listener(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_TIMEOUT_S).close()
    except OSError as error:
        raise UnreachableError(f"no Ray can be reached at {address}: {error.strerror or error}") from error


def _require_same_versions(address: str, theirs: dict[str, str]) -> None:
    try:
        check_version_info(theirs, "here")
    except (RuntimeError, KeyError) as error:
        ray_version, python_version = (theirs.get(key, "unknown") for key in ("ray_version", "python_version"))
        raise ClusterError(
            f"the cluster at {address} has Ray {ray_version} and Python {python_version}, expected Ray "
            f"{ray.__version__} and Python {platform.python_version()}, as here: Ray joins only equals; run "
            f"spmd-launch with its versions"
        ) from error


def _require_node_here(address: str, infos: list[Any]) -> None:
    here = services.find_node_ids()
    if not any(info.node_id.hex() in here for info in infos):
        known = ", ".join(f"{info.node_manager_address} ({info.node_manager_hostname})" for info in infos)
        raise ClusterError(
            f"this machine ({socket.gethostname()}) is no node of the Ray at {address} (nodes: {known or 'none'}). "
            f"A Ray takes orders only from its own nodes: run spmd-launch on one of them (with KubeRay: `kubectl exec` "
            f"into the head's pod), or make this machine one: `ray start --address={address} --num-cpus=0`"
        )


def _refused(address: str) -> str:
    mode, path = os.environ.get("RAY_AUTH_MODE", "unset"), os.environ.get("RAY_AUTH_TOKEN_PATH", "unset")
    return (
        f"the Ray at {address} asks for a token, and the one given here is missing or wrong (RAY_AUTH_MODE is {mode}, "
        f"RAY_AUTH_TOKEN_PATH {path}): set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to a file with its token"
    )
