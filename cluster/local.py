"""Emulated hosts on this machine: Ray nodes of one holder process, each with a home, disk and identity of its own."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster.errors import ClusterError
from cluster.processes import MARKER, ProcessId, end_processes, marked_processes
from cluster.record import Cluster, cluster_folder, short_folder, write_json
from cluster.spec import ClusterSpec

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0


class LocalProvider:
    """See `cluster.provider.Provider`."""

    def create(self, spec: ClusterSpec, node_env: Mapping[str, str], say: Callable[[str], None]) -> Cluster:
        folder = cluster_folder(spec.name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        cluster_id = uuid.uuid4().hex
        request = {
            "spec": spec.to_json(),
            "cluster_id": cluster_id,
            "ray_folder": short_folder(cluster_id),
            "node_env": dict(node_env),
        }
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        write_json(folder / "request.json", request)
        say(f"starting {spec.num_hosts} emulated host(s) with {spec.devices_per_host} device(s) each")
        holder = _start_holder(folder, cluster_id)
        try:
            return _wait_until_up(spec.name, holder)
        except BaseException:  # an interrupt too must not leave half a cluster
            self.delete(spec.name)
            raise

    def delete(self, name: str) -> list[str]:
        folder = cluster_folder(name)
        forced: list[str] = []
        request = _read_request(folder)
        if request is not None:
            cluster_id, ray_folder = request["cluster_id"], request["ray_folder"]
            holder = _read_holder(folder)
            if holder is not None and holder.alive():
                holder.signal(signal.SIGTERM)
                holder.signal(signal.SIGCONT)
                if not holder.wait(STOP_TIMEOUT_S):
                    forced.append(
                        f"the holder (pid {holder.pid}) did not end within {STOP_TIMEOUT_S:g} s and was killed"
                    )
                    holder.signal(signal.SIGKILL)
                    holder.wait(STOP_TIMEOUT_S)
            left = marked_processes(cluster_id, holder)
            if left:
                forced.append(f"{len(left)} process(es) without a holder were ended: {[p.pid for p in left]}")
                end_processes(left)
            shutil.rmtree(ray_folder, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        return forced

    def ray_environment(self, name: str) -> dict[str, str]:
        return ray_environment(cluster_folder(name))


def ray_environment(folder: Path) -> dict[str, str]:
    """Ray's settings for everything that talks to a local cluster.

    Token authentication with the cluster's own token; no usage reports; and loopback as the node's address, which
    Ray calls "no cluster on Windows or macOS": otherwise it rewrites 127.0.0.1 to an address that is not loopback,
    and its control service would be reachable from other machines.
    """
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "false",
        "RAY_DEDUP_LOGS": "0",
        "RAY_worker_niceness": "0",  # ranks are children of workers, which Ray gives niceness 15
    }


def _start_holder(folder: Path, cluster_id: str) -> ProcessId:
    """Starts the holder in a session of its own, so that it outlives the terminal; its identity is in `holder.json`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= ray_environment(folder) | {MARKER: cluster_id}
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


def _wait_until_up(name: str, holder: ProcessId) -> Cluster:
    folder = cluster_folder(name)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        cluster = Cluster.load(name)
        if cluster is not None:
            return cluster
        if not holder.alive():
            raise ClusterError(f"cluster {name!r}: its hosts did not start:\n{_tail(folder / 'holder.log')}")
        if time.monotonic() > deadline:
            raise ClusterError(
                f"cluster {name!r}: its hosts were not up after {START_TIMEOUT_S:g} s:\n{_tail(folder / 'holder.log')}"
            )
        time.sleep(0.02)


def _tail(path: Path, lines: int = 15) -> str:
    return "\n".join("  " + line for line in path.read_text(errors="replace").splitlines()[-lines:])


def _read_request(folder: Path) -> dict[str, str] | None:
    try:
        request: dict[str, str] = json.loads((folder / "request.json").read_text())
    except FileNotFoundError:
        return None
    return request


def _read_holder(folder: Path) -> ProcessId | None:
    try:
        return ProcessId.from_json(json.loads((folder / "holder.json").read_text()))
    except FileNotFoundError:
        return None
