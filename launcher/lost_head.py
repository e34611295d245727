"""A head that will not come back, as the cloud that had it says; what a client does about it."""

import contextlib
import time
from collections.abc import Sequence

from cluster.errors import ClusterError
from cluster.gcp_spec import GcpTpuProviderSpec
from cluster.provider import Say, Trouble, provider_for
from cluster.record import Cluster
from launcher import up_lock
from launcher.bringup import up
from launcher.errors import FailureError
from launcher.job_folder import JobFolder, jobs_folder
from launcher.recovery import after_lost_cluster

ASK_PERIOD_S = 10.0


class HeadLostError(FailureError):
    """The cloud says that the head is gone for good."""


class HeadWatch:
    """Asks a cloud now and then, while a head is silent.

    Args:
        cluster: whose head it is.
    """

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._asked = -ASK_PERIOD_S

    def require_hope(self) -> None:
        """Returns where the head may come back, or nothing is known.

        Raises:
            HeadLostError: it was taken away, or another command here brings the cluster up anew.
            FailureError: somebody has deleted it.
        """
        if not self._cluster.spec.provider.is_paid or time.monotonic() - self._asked < ASK_PERIOD_S:
            return
        if self._is_others_to_judge():
            return
        try:
            gone = [trouble for trouble in _ask(self._cluster) if trouble.head_is_gone]
        except ClusterError:  # no way to the cloud, either: then it is this client that is cut off
            gone = []
        self._asked = time.monotonic()
        if gone:
            kind = FailureError if gone[0].by_order else HeadLostError
            raise kind(f"cluster {self._cluster.name!r} has lost its head: {gone[0].text}")

    def _is_others_to_judge(self) -> bool:
        """Whether another command looks at it, as `up` does: what that deletes meanwhile would look lost.

        Raises:
            HeadLostError: it has looked, and brings the cluster up anew, or has.
        """
        name = self._cluster.name
        is_held = up_lock.is_held(name)  # before its record is read: it may be done just now
        known = Cluster.load(name)
        if known is not None and known.cluster_id == self._cluster.cluster_id:
            return is_held
        if is_held or known is not None:
            raise HeadLostError(f"cluster {name!r} has lost its head: another command here brings it up anew")
        return False


def describe_health(cluster: Cluster) -> list[str]:
    """What is not well while all hosts answer, a line each; of the clouds only Google's tells it of a slice."""
    if not isinstance(cluster.spec.provider, GcpTpuProviderSpec):
        return []
    try:
        from cluster.tpu_health import unhealthy
    except ImportError:  # the extra is not here
        return []
    return unhealthy(cluster.spec)


def describe_troubles(cluster: Cluster, lost: Sequence[str] = ()) -> list[str]:
    """What the cloud says of machines that are not as they should be, and what to do, a line each.

    Args:
        cluster: that is asked for.
        lost: its hosts that do not answer: their machines may be there, and cost.
    """
    try:
        found = _ask(cluster)
    except ClusterError as error:
        return [f"its cloud cannot be asked: {error}"]
    lines = [trouble.text for trouble in found]
    if any(trouble.head_is_gone for trouble in found):
        goes_on = "; its jobs go on there from their storage" if cluster.spec.storage_outlives_hosts else ""
        lines.append(f"the head is gone: `spmd-launch up FILE` asks for new machines{goes_on}")
    elif any(trouble.gone for trouble in found):
        lines.append("`spmd-launch up FILE` asks for new machines in their place, while jobs run")
    gone = {host for trouble in found for host in trouble.gone}
    if cluster.spec.provider.is_paid and (there := [host for host in lost if host not in gone]):
        lines.append(
            f"{', '.join(there)}: lost, but the cloud has the machines, which cost: `spmd-launch up FILE` brings them "
            f"back, `spmd-launch down {cluster.name}` ends the cluster"
        )
    return lines


def _ask(cluster: Cluster) -> Sequence[Trouble]:
    if not cluster.spec.provider.is_paid:  # no cloud has its machines
        return ()
    with contextlib.closing(provider_for(cluster.spec)) as provider:
        return provider.troubles()


def bring_back(cluster: Cluster, job: str, lost: str, say: Say) -> Cluster:
    """Brings a cluster up again whose head is gone; its jobs go on there from their storage.

    Args:
        cluster: as it was.
        job: that is followed.
        lost: why.
        say: receives one line for each step.

    Raises:
        FailureError: there is nothing to go on from, the job's budget is spent, or it cannot be brought up.
    """
    known = Cluster.load(cluster.name)
    if known is not None and known.cluster_id != cluster.cluster_id:  # another command has done it, within the budget
        return up(cluster.spec, say).cluster
    again = f"`spmd-launch up FILE` makes new machines, `spmd-launch down {cluster.name}` forgets the cluster"
    if not cluster.spec.storage_outlives_hosts:
        raise FailureError(
            f"{lost}; its checkpoints were on its machines, and are gone with them (storage_path): {again}"
        )
    folder = JobFolder(jobs_folder() / job)
    if refusal := after_lost_cluster(folder.lines("events.jsonl"), folder.spec().max_preemptions):
        raise FailureError(f"{lost}; job {job} is not tried again: {refusal}; {again}")
    say(f"! {lost}; asking for new machines, where job {job} goes on")
    return up(cluster.spec, say).cluster
