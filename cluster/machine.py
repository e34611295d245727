"""What one machine has of a cluster: a holder with its Ray nodes, and one folder. Started and removed here.

The laptop's provider calls this directly; on a machine that is reached over ssh, `cluster.on_machine` does.
"""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from cluster.processes import MARKER, ProcessId, end_processes, marked_processes
from cluster.record import cluster_folder, write_json
from cluster.slices import SlicePlace

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
LOOPBACK = "127.0.0.1"
NETWORK_LEASE_S = "20"  # SPMD_LAUNCH_LEASE_S where there is a network between hosts


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostRequest:
    """One host that a machine is to be.

    Attributes:
        index: its place in the order of ranks; 0 is the head.
        name: unique in the cluster.
        address: where other hosts reach it.
        place: in a TPU slice that is emulated; None: it is no TPU, or the host itself knows.
    """

    index: int
    name: str
    address: str
    place: SlicePlace | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "HostRequest":
        return cls(**{**value, "place": SlicePlace.from_json(value["place"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a machine.

    Attributes:
        cluster_id: unique per `up`.
        ray_folder: for what holds sockets there: short, and private to its user. Ray's own temporary folder lies in it,
            because Ray opens that to all users of the machine.
        node_env: variables for the Ray processes of its hosts.
        accelerator: what Ray is to count on its hosts, as a cluster file names it.
        hosts: that this machine is; if the head is among them, it is the first.
    """

    cluster_id: str
    ray_folder: str
    accelerator: str
    node_env: Mapping[str, str]
    hosts: tuple[HostRequest, ...]

    @property
    def has_head(self) -> bool:
        return self.hosts[0].index == 0

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Request":
        return cls(**{**value, "hosts": tuple(HostRequest.from_json(host) for host in value["hosts"])})

    @classmethod
    def load(cls, folder: Path) -> "Request":
        return cls.from_json(json.loads((folder / "request.json").read_text()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineUp:
    """What a machine that is up tells.

    Attributes:
        holder: the process that owns its nodes.
        gcs_address: host:port of Ray's control service, on the head.
        node_ids: Ray's identifier of each host here.
        places: of each host here in its TPU slice; None where it is no TPU.
    """

    holder: ProcessId
    gcs_address: str
    node_ids: Mapping[str, str]
    places: Mapping[str, SlicePlace | None]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "MachineUp":
        places = {host: SlicePlace.from_json(place) for host, place in value["places"].items()}
        return cls(**{**value, "holder": ProcessId.from_json(value["holder"]), "places": places})

    def save(self, folder: Path) -> None:
        write_json(folder / "machine.json", self.to_json())


def start_holder(name: str, request: Request, token: str) -> ProcessId:
    """Starts this machine's holder, in a session of its own, so that it outlives the terminal.

    Args:
        name: of the cluster.
        request: what this machine is to be.
        token: Ray's, hexadecimal; written to a file that only this user can read.

    Raises:
        ClusterError: it ended at once.
    """
    folder = cluster_folder(name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text(token)
    write_json(folder / "request.json", request.to_json())
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= ray_environment(folder, request.hosts[0].address) | {MARKER: request.cluster_id}
    with (folder / "holder.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster.holder", str(folder)],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    identity = ProcessId.of(process.pid)
    if identity is None:
        raise ClusterError(f"the holder ended at once with exit code {process.wait()}: see {folder / 'holder.log'}")
    write_json(folder / "holder.json", identity.to_json())
    return identity


def tell_head_address(name: str, gcs_address: str) -> None:
    """Tells the holder of a machine that has no head where the head is."""
    write_json(cluster_folder(name) / "head.json", gcs_address)


def read_head_address(folder: Path) -> str | None:
    """What `tell_head_address` told, or None."""
    try:
        address: str = json.loads((folder / "head.json").read_text())
    except FileNotFoundError:
        return None
    return address


def wait_until_up(name: str, holder: ProcessId) -> MachineUp:
    """Waits until all nodes of this machine are up.

    Raises:
        ClusterError: with the last lines of the holder's log.
    """
    folder = cluster_folder(name)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return MachineUp.from_json(json.loads((folder / "machine.json").read_text()))
        except FileNotFoundError:
            pass
        if not holder.alive():
            raise ClusterError(f"cluster {name!r}: its hosts did not start:\n{_tail(folder / 'holder.log')}")
        if time.monotonic() > deadline:
            raise ClusterError(
                f"cluster {name!r}: its hosts were not up after {START_TIMEOUT_S:g} s:\n{_tail(folder / 'holder.log')}"
            )
        time.sleep(0.02)


def remove(name: str, cluster_id: str | None = None) -> list[str]:
    """Ends every process that the cluster has on this machine and removes its folder; may be called again.

    Args:
        name: of the cluster.
        cluster_id: leave alone what another `up` has begun under that name meanwhile; None: remove whatever there is.

    Returns:
        One line for each thing that had to be forced; empty after a clean end.
    """
    folder = cluster_folder(name)
    forced: list[str] = []
    request = _read_request(folder)
    if cluster_id is not None and (request is None or request.cluster_id != cluster_id):
        return []
    if request is not None:
        holder = _read_holder(folder)
        if holder is not None and holder.alive():
            holder.signal(signal.SIGTERM)
            holder.signal(signal.SIGCONT)
            if not holder.wait(STOP_TIMEOUT_S):
                forced.append(f"the holder (pid {holder.pid}) did not end within {STOP_TIMEOUT_S:g} s and was killed")
                holder.signal(signal.SIGKILL)
                holder.wait(STOP_TIMEOUT_S)
        left = marked_processes(request.cluster_id, holder)
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            forced.append(f"{len(left)} process(es) without a holder were ended: pid {pids}")
            end_processes(left)
        shutil.rmtree(request.ray_folder, ignore_errors=True)
    if cluster_id is None or _read_request(folder) == request:
        shutil.rmtree(folder, ignore_errors=True)
    return forced


def ray_environment(folder: Path, address: str) -> dict[str, str]:
    """Ray's settings for every process of this machine that talks to the cluster.

    Token authentication with the cluster's own token; no usage reports. On loopback, what Ray calls "no cluster on
    Windows or macOS": otherwise it rewrites 127.0.0.1 to an address that is not loopback, and its control service
    would be reachable from other machines. Elsewhere, a host that is cut off is given up after some 23 s, not 62: after
    a cut of 8 s TCP tries again after 13, and hosts that are busy need some more.

    Args:
        folder: of the cluster, here.
        address: of this machine's hosts.
    """
    common = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "false",
        "RAY_DEDUP_LOGS": "0",
        "RAY_worker_niceness": "0",  # ranks are children of workers, which Ray gives niceness 15
        # An agent holds all its host's accelerators, and its rank is to see them as the host has them.
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
        "RAY_EXPERIMENTAL_NOSET_TPU_VISIBLE_CHIPS": "1",
    }
    if address == LOOPBACK:
        return common | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    return common | {
        "RAY_health_check_period_ms": "2000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "6",
    }


def _tail(path: Path, lines: int = 15) -> str:
    return "\n".join("  " + line for line in path.read_text(errors="replace").splitlines()[-lines:])


def _read_request(folder: Path) -> Request | None:
    try:
        return Request.load(folder)
    except FileNotFoundError:
        return None


def _read_holder(folder: Path) -> ProcessId | None:
    try:
        return ProcessId.from_json(json.loads((folder / "holder.json").read_text()))
    except FileNotFoundError:
        return None
