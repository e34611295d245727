"""What a machine that ssh reaches is as a host of a cluster: what it is asked for, its record, its return."""

from cluster.errors import ClusterError
from cluster.machine import NETWORK_LEASE_S, HostRequest, MachineUp, Request
from cluster.place_code import Code
from cluster.provider import Say
from cluster.record import Cluster, Host, short_folder
from cluster.remote_machine import RemoteMachine
from cluster.slices import emulated_place


def request_of(machine: RemoteMachine, index: int, cluster_id: str, code: Code) -> Request:
    """What a machine is to be asked for.

    Args:
        machine: that was looked at.
        index: of the host in the cluster file.
        cluster_id: of the cluster.
        code: that its processes run.
    """
    spec = machine.spec
    place = emulated_place(spec.hardware, spec.name, index) if spec.emulate else None
    return Request(
        cluster_id=cluster_id,
        ray_folder=short_folder(cluster_id),
        node_env={
            "PYTHONPATH": str(code.folder(machine.folder)),
            "SPMD_LAUNCH_HOME": machine.known.home,
            "SPMD_LAUNCH_LEASE_S": NETWORK_LEASE_S,
        },
        accelerator=spec.accelerator,
        hosts=(HostRequest(index=index, name=machine.host, address=machine.known.address, place=place),),
    )


def record_of(machine: RemoteMachine, index: int, up: MachineUp) -> Host:
    """The record of the host that a machine is, now that it is up."""
    return Host(
        index=index,
        name=machine.host,
        node_id=up.node_ids[machine.host],
        address=machine.known.address,
        folder=str(machine.folder / "hosts" / machine.host),
        place=up.places[machine.host],
    )


def rejoin(machine: RemoteMachine, host: Host, cluster: Cluster, token: str, code: Code, say: Say) -> Host:
    """Makes a machine the host again that it was, or that another was, in a cluster that runs; it waits for `settle`.

    Args:
        machine: that was looked at, and found good.
        host: its record as it was.
        cluster: that has lost it.
        token: of the cluster's Ray.
        code: that its processes run.
        say: receives one line for each step.

    Returns:
        Its new record.

    Raises:
        ClusterError: why it is not.
    """
    folder = str(machine.folder / "hosts" / host.name)
    if folder != host.folder:
        raise ClusterError(f"host {host.name}: our folder there would be {folder}, expected {host.folder}, as before")
    machine.prepare(code, say)
    machine.begin(code, request_of(machine, host.index, cluster.cluster_id, code), token)
    new = record_of(machine, host.index, machine.join(cluster.gcs_address))
    if new.place != host.place:
        raise ClusterError(f"host {host.name}: its place in a slice is {new.place}, expected {host.place}, as before")
    say(f"{host.name}: up")
    return new
