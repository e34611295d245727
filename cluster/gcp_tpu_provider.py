"""Cloud TPU slices as hosts: asked for at the cloud, then brought up as any machines over ssh."""

import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import ClassVar

import psutil

from cluster.access import Access, Target
from cluster.errors import ClusterConfigError, ClusterError
from cluster.gcp_spec import GcpTpuProviderSpec
from cluster.labels import ID
from cluster.place_code import Code
from cluster.plan import Action, host_actions
from cluster.provider import Say, Trouble
from cluster.record import Cluster, Host, cluster_folder
from cluster.spec import ClusterSpec
from cluster.ssh_provider import SshProvider, close_tunnel, links_folder
from cluster.tpu_key import make_key, private_key
from cluster.tpu_slice import Slice

SSHD_TIMEOUT_S = 300.0  # from READY until a machine has booted and knows our key


class GcpTpuProvider:
    """See `cluster.provider.Provider`. Where slices are and how they are is the cloud's to say, never a record's.

    Raises:
        ClusterConfigError: google's client is not installed.
    """

    resumes: ClassVar[bool] = True

    def __init__(self, spec: ClusterSpec):
        _require_client()
        from cluster.tpu_cloud import TpuCloud  # here, because google's client is an extra
        from cluster.tpu_slices import TpuSlices

        assert isinstance(spec.provider, GcpTpuProviderSpec)
        self.spec, self.provider = spec, spec.provider
        self.slices = TpuSlices(spec, TpuCloud(spec.provider, spec.accelerator))
        self._machines: SshProvider | None = None
        self._asked: list[str] = []  # names of slices that `mend` has asked for, or has found being asked for

    @property
    def machines(self) -> SshProvider:
        """Those that have been reached."""
        assert self._machines is not None
        return self._machines

    def find(self) -> Cluster | None:
        found = self.slices.now()
        if not self.slices.is_ready(found[0]):  # the head is on the first
            return None
        self._made_by = found[0].labels.get(ID, "")
        if self._made_by and self._made_by == self.slices.request_id() and Cluster.load(self.spec.name) is None:
            return None  # by an `up` from here that did not come to its end, and may have been killed just now
        self._machines = self._reach([slice_ for slice_ in found if self.slices.is_ready(slice_)])
        return self.machines.find()

    def plan_up(self) -> list[Action]:
        return self._plan(self.slices.now())

    def plan_anew(self) -> list[Action]:
        return self._plan([Slice(name=name) for name in self.slices.names])

    def _plan(self, found: Sequence[Slice]) -> list[Action]:
        from cluster.tpu_plan import plan_up  # here, as in `__init__`

        hosts = [target.name for slice_ in found for target in self._targets(slice_)]
        return [*plan_up(self.slices, found), *host_actions("start", hosts)]

    def plan_mend(self, lost: Sequence[str]) -> list[Action]:
        from cluster.tpu_plan import plan_up

        _, *others = self.slices.now()
        of_lost = _slices_of(lost)
        missing = [each for each in others if not self._can_stay(each, is_lost=each.name in of_lost)]
        hosts = [target.name for slice_ in missing for target in self._targets(slice_)]
        new = plan_up(self.slices, missing, of_lost)
        return [*new, *(Action(verb="start", kind="host", name=name) for name in dict.fromkeys([*hosts, *lost]))]

    def plan_down(self) -> list[Action]:
        from cluster.tpu_plan import plan_down

        cluster = Cluster.load(self.spec.name)
        hosts = [host.name for host in cluster.hosts] if cluster is not None else []
        return [*host_actions("end", hosts), *plan_down(self.slices)]

    def create(self, code: Code, say: Say, head_has_code: Callable[[], None]) -> Cluster:
        close_tunnel(self.spec.name)  # to machines that may be gone
        (cluster_folder(self.spec.name) / "cluster.json").unlink(missing_ok=True)
        if self.provider.adopt:
            self._machines = self._reach(self.slices.wait(say))
        else:
            self._machines = self._reach(self._make(say))
            say(f"waiting for sshd on {len(self.machines.machines)} host(s)")
            self.machines.wait_for_sshd(self.machines.machines, SSHD_TIMEOUT_S)
        return self.machines.create(code, say, head_has_code)

    def _make(self, say: Say) -> Sequence[Slice]:
        if not self.spec.storage_outlives_hosts:
            say("! checkpoints lie on the machines' own disks: whoever loses the head's slice, to a preemption or by "
                "`down`, loses them all; storage_path: gs://BUCKET/... keeps them")  # fmt: skip
        new = self.slices.ask_for(make_key(self.provider, self.spec.name), say)
        self._forget_host_keys(new)
        return self.slices.wait(say)

    def _forget_host_keys(self, names: Sequence[str]) -> None:
        """Machines of slices that come anew under these names have other keys."""
        for machine in self._reach([Slice(name=name) for name in names]).machines if names else ():
            machine.ssh.forget_host_key()

    def mend(self, cluster: Cluster, lost: Sequence[str], code: Code, say: Say) -> Sequence[Host]:
        head, *others = self.slices.now()
        if not self.slices.is_ready(head):
            raise ClusterError(f"slice {head.name} is {head.state}, and the head is on it: `up` again when it is gone")
        found = [slice_ for slice_ in others if slice_.name in _slices_of(lost)]
        missing = [slice_ for slice_ in found if not self._can_stay(slice_, is_lost=True)]
        self._asked = [slice_.name for slice_ in missing]
        if self._asked:
            self._forget_host_keys(self._asked)  # before: who goes on after a kill finds them asked for already
            self.slices.ask_for(make_key(self.provider, self.spec.name), say, self._asked)
            self.slices.wait(say, self._asked)
        new = [target.name for slice_ in missing for target in self._targets(slice_)]  # known to be lost or not
        self._machines = self._reach([slice_ for slice_ in self.slices.now() if slice_.addresses])
        booting = [machine for machine in self.machines.machines if machine.host in new]
        self.machines.wait_for_sshd(booting, SSHD_TIMEOUT_S)
        return self.machines.mend(cluster, list(dict.fromkeys([*new, *lost])), code, say)

    def _can_stay(self, slice_: Slice, *, is_lost: bool) -> bool:
        """Whether its machines can be used; those of an unhealthy slice of which one is lost already are given up."""
        is_given_up = is_lost and self.slices.is_ill(slice_)
        return bool(self.provider.adopt) or (self.slices.is_ready(slice_) and not is_given_up)

    def unmend(self, code: Code) -> None:
        try:
            if self._machines is not None:
                self._machines.unmend(code)
        finally:  # what costs money, whatever ssh has come to
            if self._asked:
                self.slices.delete(self._asked)

    def start_on_head(self, module: str, code: Code) -> subprocess.Popen[bytes]:
        return self.machines.start_on_head(module, code)

    def attach(self, cluster: Cluster) -> Cluster:
        attached = self.machines.attach(cluster)
        if not self.provider.adopt and not self.slices.request_id():  # another client has brought it up
            self.slices.remember(self._made_by)
        return attached

    def purge_problem(self) -> str:
        if not self.provider.adopt:
            return ""  # the machines go
        self._machines = self._machines or self._reach(self.slices.now())
        return self.machines.purge_problem()

    def delete(self, code: Code, *, purge: bool = False) -> list[str]:
        try:
            if self.provider.adopt:
                self._machines = self._machines or self._reach(self.slices.now())
                return self.machines.delete(code, purge=purge)
            close_tunnel(self.spec.name)
            self.slices.delete()
        except ClusterError as error:
            return [str(error)]
        shutil.rmtree(cluster_folder(self.spec.name), ignore_errors=True)
        shutil.rmtree(links_folder(self.spec.name), ignore_errors=True)
        return []

    def delete_from_head(self) -> None:
        """Deletes the slices that `up` has made, the head's last; called on the head, with its service account."""
        if not self.provider.adopt:
            from cluster.tpu_self_delete import delete_from_inside

            own = [address.address for addresses in psutil.net_if_addrs().values() for address in addresses]
            delete_from_inside(self.slices.cloud, self.spec.name, own)

    def troubles(self) -> Sequence[Trouble]:
        return [
            self._trouble(slice_, is_head=index == 0)
            for index, slice_ in enumerate(self.slices.look())
            if slice_.health or not self.slices.is_ready(slice_)
        ]

    def _trouble(self, slice_: Slice, *, is_head: bool) -> Trouble:
        words = f"slice {slice_.name}: {slice_.condition}"
        gone = slice_.is_dead or slice_.is_going or not slice_.is_there
        hosts = tuple(target.name for target in self._targets(slice_)) if gone else ()
        return Trouble(text=words, head_is_gone=is_head and gone, by_order=slice_.is_by_order, gone=hosts)

    def after_down(self) -> str:
        if adopted := ", ".join(self.provider.adopt):
            return f"adopted, and still there and billed: {adopted}"
        return f"all its slices are deleted; lists of {self.provider.project}, {self.provider.zone} show none"

    def close(self) -> None:
        if self._machines is not None:
            self._machines.close()

    def _reach(self, slices: Sequence[Slice]) -> SshProvider:
        """The machines of slices, by worker id."""
        access = Access(
            targets=tuple(target for slice_ in slices for target in self._targets(slice_)),
            user=self.provider.login_user,
            identity_file=private_key(self.provider, self.spec.name),
        )
        return SshProvider(self.spec, access)

    def _targets(self, slice_: Slice) -> list[Target]:
        """A name for each machine, whose address the name service does not know."""
        addresses = slice_.addresses or [("", "")] * self.spec.hardware.hosts_per_slice
        return [
            Target(
                f"{slice_.name}-w{worker}", address=internal if self.provider.use_internal_ips else external or internal
            )
            for worker, (internal, external) in enumerate(addresses)
        ]


def _slices_of(hosts: Sequence[str]) -> set[str]:
    return {host.rpartition("-w")[0] for host in hosts}


def _require_client() -> None:
    try:
        there = importlib.util.find_spec("google.cloud.tpu_v2") is not None
    except ModuleNotFoundError:
        there = False
    if not there:
        raise ClusterConfigError(
            "provider.type", "gcp-tpu needs google's client, which is not here: pip install 'google-cloud-tpu>=1.28,<2'"
        )
