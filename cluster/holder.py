"""The one process of a machine that owns the cluster's Ray nodes there: `python -m cluster.holder FOLDER`.

On a laptop it owns all hosts of the cluster, elsewhere the one that the machine is. Nodes are started from threads, all
workers at once (one after another costs twice the time). The kernel ends a raylet with the thread that forked it, so
the threads wait for ever, and whatever ends this process, a SIGKILL included, ends every node. What a raylet leaves
behind ends by itself: agents watch their parent, ranks their lease. A rank that was frozen (SIGSTOP) cannot; it is
ended here. A machine without the head joins it again if its node dies, or if it was cut off for so long that the head
has given it up.
"""

import datetime
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ray._private.node import Node
from ray._private.parameter import RayParams

from cluster.abandoned import end_abandoned_ranks
from cluster.accelerators import Accelerator
from cluster.head_watch import HeadWatch
from cluster.host_node import HostNode
from cluster.machine import HostRequest, MachineUp, Request, read_head_address
from cluster.processes import ProcessId, end_processes, marked_processes
from cluster.record import write_json
from cluster.slices import SlicePlace, emulated_variables, ray_labels, ray_resources
from cluster.tpu_host import detect_place

OBJECT_STORE_BYTES = 128 * 2**20  # a laptop's; what passes through is code, logs and results
WATCH_PERIOD_S = 0.5
JOIN_TIMEOUT_S = 110.0
POLL_S = 0.02
HEAD_AWAY_S = 25.0  # the head gives a machine up after some 23 s, and its ranks' leases are 20 s
REJOIN_TIMEOUT_S = 600.0  # a head that is away for longer is not waited for


class Nodes:
    """The Ray nodes of this machine, the head among them if it is here.

    Args:
        request: what was asked of this machine.
        folder: of the cluster.
        stopping: set when this machine is to end what it has.
    """

    def __init__(self, request: Request, folder: Path, stopping: threading.Event):
        self.request = request
        self.folder = folder
        self.stopping = stopping
        self.accelerator = Accelerator.parse(request.accelerator)
        self.nodes: dict[str, Node] = {}
        self.places: dict[str, SlicePlace | None] = {}
        self.failure: str | None = None

    def start(self) -> None:
        """Starts the head if it is here, then all other nodes at once.

        Raises:
            RuntimeError: naming the host that did not start.
        """
        first, *others = self.request.hosts
        gcs_address = None if self.request.has_head else wait_for_head(self.folder, self.stopping)
        self.nodes[first.name] = head = self._node(first, gcs_address, None)
        for host in others:
            threading.Thread(target=self._start_and_stay, args=(host, head), daemon=True).start()
        while len(self.nodes) < len(self.request.hosts):
            if self.failure:
                raise RuntimeError(self.failure)
            time.sleep(0.01)

    def _start_and_stay(self, host: HostRequest, head: Node) -> None:
        try:
            node = self._node(host, head.gcs_address, head)
        except BaseException as error:
            self.failure = f"host {host.name}: {error!r}"
            raise
        self.nodes[host.name] = node
        threading.Event().wait()  # the raylet dies with this thread

    def _node(self, host: HostRequest, gcs_address: str | None, beside: Node | None) -> Node:
        """Starts a node: the head without `gcs_address`; `beside` another one that is on this machine."""
        host_folder = self.folder / "hosts" / host.name
        host_folder.mkdir(parents=True, exist_ok=True)
        resources = self._resources(host)
        place: dict[str, Any] = {"temp_dir": f"{self.request.ray_folder}/ray"}
        if gcs_address is not None:
            place["gcs_address"] = gcs_address
        if beside is not None:
            sockets = beside.get_sockets_dir_path()
            place |= {
                "raylet_socket_name": f"{sockets}/raylet.{host.index}",  # by default all nodes want the same name
                "plasma_store_socket_name": f"{sockets}/plasma.{host.index}",
            }
        parameters = RayParams(
            node_ip_address=host.address,
            node_name=host.name,
            num_cpus=1 if gcs_address else 2,  # our agent, and the supervisor on the head: Ray starts a worker each
            object_store_memory=OBJECT_STORE_BYTES,
            min_worker_port=0,
            max_worker_port=0,
            node_manager_port=0,
            dashboard_agent_listen_port=0,
            dashboard_port=0,
            include_dashboard=False,
            include_log_monitor=False,
            no_monitor=True,
            env_vars={
                **self.request.node_env,
                **(emulated_variables(self.accelerator, host.place) if host.place else {}),
                "SPMD_LAUNCH_HOST_FOLDER": str(host_folder),
            },
            **place,
            **resources,
        )
        return HostNode(parameters, head=gcs_address is None, shutdown_at_exit=False, spawn_reaper=True)

    def _resources(self, host: HostRequest) -> dict[str, Any]:
        """What Ray is told that the host has."""
        place = host.place
        if place is None and self.accelerator.kind == "tpu":
            place = detect_place()
        self.places[host.name] = place
        return {
            "num_gpus": self.accelerator.chips_per_host if self.accelerator.kind == "gpu" else 0,
            "resources": ray_resources(self.accelerator, place),
            "labels": {"spmd-launch/host": host.name} | ray_labels(self.accelerator, place),
        }

    def report(self) -> MachineUp:
        first = self.nodes[self.request.hosts[0].name]
        return MachineUp(
            holder=ProcessId.current(),
            gcs_address=first.gcs_address,
            node_ids={name: node.node_id for name, node in self.nodes.items()},
            places=self.places,
        )

    def first_is_dead(self) -> bool:
        """Whether the head is, or on a machine of one host that host."""
        return bool(self.nodes[self.request.hosts[0].name].dead_processes())

    def end_lost_hosts(self) -> None:
        """Ends what is left of each host whose raylet has died."""
        for name, node in self.nodes.items():
            if node.dead_processes() and node.live_processes():
                log(f"host {name}: its raylet died; ending what is left of it")
                node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def require_visible_gpus(accelerator: Accelerator) -> None:
    """Refuses a machine whose environment hides some of the GPUs that Ray is to be told of: Ray would fail obscurely.

    Raises:
        RuntimeError: with the variable and what was expected.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if accelerator.kind == "gpu" and visible is not None:
        found = [device for device in visible.split(",") if device]
        if len(found) != accelerator.chips_per_host:
            raise RuntimeError(
                f"CUDA_VISIBLE_DEVICES is {visible!r} on this machine, expected {accelerator.chips_per_host} devices, "
                f"as {accelerator.name} has, or that it is not set"
            )


def log(message: str) -> None:
    print(f"{datetime.datetime.now().isoformat(timespec='milliseconds')} {message}", file=sys.stderr, flush=True)


def wait_for_head(folder: Path, stopping: threading.Event) -> str:
    """The address of the head's control service, which is told when the head is up; it answers before this returns.

    Raises:
        RuntimeError: it was not told, or it does not answer, or it is not to be waited for any more.
    """
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    why = f"the head was not up after {JOIN_TIMEOUT_S:g} s"
    while time.monotonic() < deadline and not stopping.wait(POLL_S):
        if address := read_head_address(folder):
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), timeout=2.0).close()
                return address
            except OSError as error:
                why = f"the head's control service at {address} cannot be reached: {error}"
    raise RuntimeError("told to end before the head was up" if stopping.is_set() else why)


def hold(nodes: Nodes) -> bool:
    """Starts the nodes and watches them until they are to stop.

    Returns:
        False if those died without which there is nothing, or if the head has given them up.
    """
    nodes.start()
    nodes.report().save(nodes.folder)
    log(f"{len(nodes.nodes)} host(s) up")
    watch = None if nodes.request.has_head else HeadWatch(nodes.report().gcs_address)
    try:
        while not nodes.stopping.wait(WATCH_PERIOD_S):
            if nodes.first_is_dead():
                return False
            if watch is not None and watch.away_s() > HEAD_AWAY_S:
                log(f"the head was not reached for {HEAD_AWAY_S:g} s: it has given this machine up")
                return False
            nodes.end_lost_hosts()
            for host_folder in nodes.folder.glob("hosts/*"):
                for line in end_abandoned_ranks(host_folder, nodes.request.cluster_id):
                    log(line)
        return True
    finally:
        if watch is not None:
            watch.close()


def hold_on(request: Request, folder: Path, stopping: threading.Event) -> bool:
    """As `hold`; a machine without the head joins it again whenever its node was ended, as after a long cut.

    Returns:
        False if what cannot be replaced died, or if the head was not reached again for REJOIN_TIMEOUT_S.

    Raises:
        RuntimeError: the nodes have not come up at all.
    """
    deadline = None
    while deadline is None or time.monotonic() < deadline:
        nodes = Nodes(request, folder, stopping)
        try:
            if hold(nodes):
                return True
            if request.has_head:
                return False
            deadline = time.monotonic() + REJOIN_TIMEOUT_S
        except RuntimeError as error:
            if deadline is None:
                raise
            log(f"the head is not to be reached now: {error}")
        finally:
            end_nodes(nodes)
        if stopping.is_set():
            return True
        log("joining the head again")
    return False


def end_nodes(nodes: Nodes) -> None:
    """Ends the nodes, and every other process of the cluster on this machine."""
    nodes.stop()
    end_processes(marked_processes(nodes.request.cluster_id, ProcessId.current()), grace_s=1.0)


def main(folder: Path) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    request = Request.load(folder)
    require_visible_gpus(Accelerator.parse(request.accelerator))
    if os.path.isdir(request.ray_folder):  # a holder that was killed, whose own folder is gone, had it
        end_processes(marked_processes(request.cluster_id, ProcessId.current()))
        shutil.rmtree(request.ray_folder, ignore_errors=True)
    os.makedirs(request.ray_folder, mode=0o700)
    try:
        good = hold_on(request, folder, stop)
        if not good:
            why = f"the Ray processes of {request.hosts[0].name} died"
            log(f"{why}: ending what this machine has of the cluster")
            write_json(folder / "ended.json", {"why": why})
        return 0 if good else 1
    finally:
        shutil.rmtree(request.ray_folder, ignore_errors=True)
        log("ended")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
