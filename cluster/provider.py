"""The small interface behind which hosts are made. A new kind of machine is a new provider, nothing else."""

import dataclasses
import subprocess
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from cluster.place_code import Code
from cluster.plan import Action
from cluster.record import Cluster, Host
from cluster.spec import ClusterSpec

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trouble:
    """Machines that are not well, or gone, as the cloud that has them says.

    Attributes:
        text: one line, as `slice pod-0: PREEMPTED`.
        head_is_gone: the head was one of them, and will not come back.
        by_order: somebody has deleted them, or the cluster itself has: nobody may ask for them again unbidden.
        gone: names of the hosts that they were, and that will not come back.
    """

    text: str
    head_is_gone: bool = False
    by_order: bool = False
    gone: tuple[str, ...] = ()


class Provider(Protocol):
    """Makes the hosts of one cluster, and unmakes them. Every method may be called again after it was interrupted.

    Attributes:
        resumes: `create` goes on with what an earlier `up` of the same request has left, which is not deleted first.
    """

    resumes: ClassVar[bool]

    def find(self) -> Cluster | None:
        """The cluster of that name that is up already, maybe brought up by another client; None if there is none.

        Raises:
            ClusterError: the hosts cannot be asked.
        """
        ...

    def plan_up(self) -> list[Action]:
        """What `create` would do, in order and with real names; it may ask what is there, and changes nothing.

        Raises:
            ClusterError: it cannot be asked.
        """
        ...

    def plan_anew(self) -> list[Action]:
        """As `plan_up`, if nothing were there; asks nobody."""
        ...

    def plan_mend(self, lost: Sequence[str]) -> list[Action]:
        """What `mend` would do, likewise; where a cloud can be asked, also for hosts that are not known to be lost.

        Raises:
            ClusterError: it cannot be asked.
        """
        ...

    def plan_down(self) -> list[Action]:
        """What `delete` would do, likewise.

        Raises:
            ClusterError: it cannot be asked.
        """
        ...

    def create(self, code: Code, say: Say, head_has_code: Callable[[], None]) -> Cluster:
        """Starts all hosts as Ray nodes, in parallel where it can.

        Args:
            code: what the processes of every host run.
            say: receives one line for each thing a waiting person wants to know.
            head_has_code: called once as soon as `start_on_head` may be.

        Returns:
            The cluster as its head is to record it.

        Raises:
            ClusterError: what failed and on which host; `delete` then undoes whatever was half made.
        """
        ...

    def mend(self, cluster: Cluster, lost: Sequence[str], code: Code, say: Say) -> Sequence[Host]:
        """Makes hosts that a running cluster has lost, never its head, Ray nodes of it again, on machines of their own.

        Whatever is left of them where they were is ended first. They wait for `attach`; `unmend` takes them back.

        Args:
            cluster: that is up.
            lost: names of hosts.
            code: as for `create`.
            say: receives one line for each thing a waiting person wants to know, and why a host stays lost.

        Returns:
            The new records of those that are back, each with the index, name, folder and place that it had.

        Raises:
            ClusterError: why none is.
        """
        ...

    def unmend(self, code: Code) -> None:
        """Takes back what `mend` has begun, and what it has asked for that costs money; nothing else.

        Raises:
            ClusterError: what may be left.
        """
        ...

    def start_on_head(self, module: str, code: Code) -> subprocess.Popen[bytes]:
        """`python -m MODULE` on the head's machine with the cluster's code; all three streams are pipes."""
        ...

    def attach(self, cluster: Cluster) -> Cluster:
        """The cluster as this client records it, now done: with a socket here that leads to its supervisor.

        Raises:
            ClusterError: the head cannot be reached.
        """
        ...

    def purge_problem(self) -> str:
        """Why `delete` with `purge` must not be begun; '' if it may. It may ask the hosts, and changes nothing.

        Raises:
            ClusterError: a cloud cannot be asked where they are.
        """
        ...

    def delete(self, code: Code, *, purge: bool = False) -> list[str]:
        """Ends every process of the cluster and removes what it wrote outside jobs and checkpoints.

        Args:
            code: as for `create`.
            purge: remove from the hosts all that was ever written there by us, jobs, checkpoints, what scripts have
                saved and environments too; where another cluster uses our folder by now it stays, with a line.

        Returns:
            One line for each thing that had to be forced, or could not be done; empty after a clean end.
        """
        ...

    def delete_from_head(self) -> None:
        """Deletes all that costs money and can be billed, the head too; for a cluster that takes itself down.

        Called on the head, with the head's own credentials, in a process that is not ended with the cluster; and again
        until it returns. Where nothing is paid for it is never called.

        Raises:
            ClusterError: what could not be deleted, and what to do.
        """
        ...

    def troubles(self) -> Sequence[Trouble]:
        """What a cloud says of machines that are not as they should be; empty where all are, and where there is none.

        Raises:
            ClusterError: the cloud cannot be asked.
        """
        ...

    def after_down(self) -> str:
        """What is true once `delete` has come to its end, for whoever has waited; "" if there is nothing to say."""
        ...

    def close(self) -> None:
        """Ends connections that were opened on the way; the cluster stays as it is."""
        ...


def provider_for(spec: ClusterSpec) -> Provider:
    """The provider that the cluster file asks for, as in `provider: {type: ...}`."""
    from cluster.gcp_tpu_provider import GcpTpuProvider  # here, because the providers import this module
    from cluster.local import LocalProvider
    from cluster.ray_launcher_provider import RayLauncherProvider
    from cluster.ray_provider import RayProvider
    from cluster.ssh_provider import SshProvider

    kinds: dict[str, Callable[[ClusterSpec], Provider]] = {
        "local": LocalProvider,
        "ssh": SshProvider,
        "ray": RayProvider,
        "gcp-tpu": GcpTpuProvider,
        "ray-launcher": RayLauncherProvider,
    }
    return kinds[spec.provider.type](spec)
