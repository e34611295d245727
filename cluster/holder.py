"""The one process that owns the nodes of a local cluster: `python -m cluster.holder FOLDER`.

Ray's nodes are started here from threads, all workers at once (one after another costs twice the time). The kernel
ends a raylet with the thread that forked it, so the threads wait for ever, and whatever ends this process, a SIGKILL
included, ends every node. What a raylet leaves behind ends by itself: agents watch their parent, ranks their lease.
A rank that was frozen (SIGSTOP) cannot; it is ended here.
"""

import datetime
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ray._private.node import Node
from ray._private.parameter import RayParams

from cluster.host_node import HostNode
from cluster.processes import ProcessId, end_processes, marked_processes
from cluster.record import Cluster, Host, write_json
from cluster.spec import ClusterSpec

OBJECT_STORE_BYTES = 128 * 2**20  # a laptop's; what passes through is code, logs and results
ADDRESS = "127.0.0.1"
WATCH_PERIOD_S = 0.5


class Nodes:
    """All Ray nodes of the cluster, the head among them."""

    def __init__(self, spec: ClusterSpec, request: dict[str, Any], folder: Path):
        self.spec = spec
        self.request = request
        self.folder = folder
        self.names = [f"{spec.name}-{index}" for index in range(spec.num_hosts + spec.spares)]
        self.nodes: dict[str, Node] = {}
        self.failure: str | None = None

    def start(self) -> None:
        """Starts the head, then all other nodes at once.

        Raises:
            RuntimeError: naming the host that did not start.
        """
        head = self._node(0, None)
        self.nodes[self.names[0]] = head
        for index in range(1, len(self.names)):
            threading.Thread(target=self._start_and_stay, args=(index, head), daemon=True).start()
        while len(self.nodes) < len(self.names):
            if self.failure:
                raise RuntimeError(self.failure)
            time.sleep(0.01)

    def _start_and_stay(self, index: int, head: Node) -> None:
        try:
            node = self._node(index, head)
        except BaseException as error:
            self.failure = f"host {self.names[index]}: {error!r}"
            raise
        self.nodes[self.names[index]] = node
        threading.Event().wait()  # the raylet dies with this thread

    def _node(self, index: int, head: Node | None) -> Node:
        name = self.names[index]
        host_folder = self.folder / "hosts" / name
        host_folder.mkdir(parents=True, exist_ok=True)
        place: dict[str, Any] = {"temp_dir": self.request["ray_folder"]}
        if head is not None:
            sockets = head.get_sockets_dir_path()
            place |= {
                "gcs_address": head.gcs_address,
                "raylet_socket_name": f"{sockets}/raylet.{index}",  # by default all nodes want the same name
                "plasma_store_socket_name": f"{sockets}/plasma.{index}",
            }
        parameters = RayParams(
            node_ip_address=ADDRESS,
            node_name=name,
            labels={"spmd-launch/host": name},
            num_cpus=2 if head is None else 1,  # our agent, and the supervisor on the head: Ray starts a worker each
            num_gpus=0,
            object_store_memory=OBJECT_STORE_BYTES,
            min_worker_port=0,
            max_worker_port=0,
            node_manager_port=0,
            dashboard_agent_listen_port=0,
            dashboard_port=0,
            include_dashboard=False,
            include_log_monitor=False,
            no_monitor=True,
            env_vars=self.request["node_env"] | {"SPMD_LAUNCH_HOST_FOLDER": str(host_folder)},
            **place,
        )
        return HostNode(parameters, head=head is None, shutdown_at_exit=False, spawn_reaper=True)

    def record(self) -> Cluster:
        head = self.nodes[self.names[0]]
        return Cluster(
            spec=self.spec,
            cluster_id=self.request["cluster_id"],
            holder=ProcessId.current(),
            gcs_address=head.gcs_address,
            ray_folder=self.request["ray_folder"],
            hosts=tuple(
                Host(
                    index=index,
                    name=name,
                    node_id=self.nodes[name].node_id,
                    address=ADDRESS,
                    folder=str(self.folder / "hosts" / name),
                )
                for index, name in enumerate(self.names)
            ),
            created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        )

    def head_is_dead(self) -> bool:
        return bool(self.nodes[self.names[0]].dead_processes())

    def end_lost_hosts(self) -> None:
        """Ends what is left of each host whose raylet has died."""
        for name, node in self.nodes.items():
            if node.dead_processes() and node.live_processes():
                log(f"host {name}: its raylet died; ending what is left of it")
                node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def end_abandoned_ranks(folder: Path, cluster_id: str) -> None:
    """Ends the process groups of ranks whose agent is gone: neither a frozen rank nor a child of one can notice it."""
    for path in folder.glob("hosts/*/ranks/*.json"):
        try:
            value = json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            continue  # removed, or being written
        agent, rank = ProcessId.from_json(value["agent"]), ProcessId.from_json(value["rank"])
        if not agent.alive():
            left = [process for process in marked_processes(cluster_id) if _group(process) == rank.pid]
            if left:
                log(f"ending {len(left)} process(es) of rank {rank.pid}: its agent (pid {agent.pid}) is gone")
            for process in left:
                process.signal(signal.SIGKILL)
            path.unlink(missing_ok=True)


def _group(process: ProcessId) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def log(message: str) -> None:
    print(f"{datetime.datetime.now().isoformat(timespec='milliseconds')} {message}", file=sys.stderr, flush=True)


def main(folder: Path) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    request = json.loads((folder / "request.json").read_text())
    nodes = Nodes(ClusterSpec.from_json(request["spec"]), request, folder)
    os.makedirs(request["ray_folder"], mode=0o700)
    try:
        nodes.start()
        nodes.record().save()
        log(f"{len(nodes.nodes)} host(s) up")
        while not stop.wait(WATCH_PERIOD_S):
            if nodes.head_is_dead():
                log("the head's Ray processes died: ending the cluster")
                write_json(folder / "ended.json", {"why": "the head's Ray processes died"})
                return 1
            nodes.end_lost_hosts()
            end_abandoned_ranks(folder, request["cluster_id"])
        return 0
    finally:
        nodes.stop()
        end_processes(marked_processes(request["cluster_id"], ProcessId.current()), grace_s=1.0)
        shutil.rmtree(request["ray_folder"], ignore_errors=True)
        log("ended")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
