"""What a cluster file says of machines that Ray's cluster launcher makes: AWS, Google Cloud, Azure."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from cluster.durations import NEVER
from cluster.errors import ClusterConfigError
from cluster.prices import Rental

if TYPE_CHECKING:  # specs of clusters hold those of providers
    from cluster.spec import ClusterSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machines:
    """What the launcher's file tells of the machines; nothing here is a secret, though the file may hold some.

    Attributes:
        cloud: `aws`, `gcp` or `azure`.
        region: as the cloud names it.
        namespace: `cluster_name` of the file.
        node_type: of `available_node_types`; all hosts are of this one.
        machine_type: as the cloud names it, such as `p5.48xlarge`; '' where a launch template has it.
        spot: whether the cloud may take them back.
        max_hosts: how many of them the file allows.
        user: who logs in.
        internal_ips: whether the client reaches them by the addresses that they have among themselves.
        digest: of the file's content.
    """

    cloud: str
    region: str
    namespace: str
    node_type: str
    machine_type: str
    spot: bool
    max_hosts: int
    user: str
    internal_ips: bool
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class LauncherProviderSpec:
    """Machines that Ray's cluster launcher makes of a file that `ray up` takes.

    Attributes:
        file: absolute; two clients may have the same content at different places.
        node_type: which of the file's, where it has several that would do.
        machines: what the file tells; `cluster.launcher_file` has read it.
    """

    type: ClassVar[str] = "ray-launcher"
    accelerators: ClassVar[tuple[str, ...]] = ("cpu", "gpu")
    owns_ray: ClassVar[bool] = True
    shares_disk: ClassVar[bool] = False
    over_ssh: ClassVar[bool] = True
    is_paid: ClassVar[bool] = True
    idle_by_default: ClassVar[str] = NEVER  # a head can end its machines only with a profile that the file may not name
    file: str = dataclasses.field(compare=False)
    node_type: str | None = None
    machines: Machines = dataclasses.field(metadata={"derived": True})

    def __post_init__(self) -> None:
        if isinstance(self.machines, Mapping):  # as JSON has it
            object.__setattr__(self, "machines", Machines(**self.machines))

    @property
    def place(self) -> str:
        """See `cluster.leftovers.InPlace`."""
        return f"{self.machines.cloud}/{self.machines.region}"

    def rentals(self, spec: "ClusterSpec") -> list[Rental]:
        """See `cluster.prices.Renter`."""
        machines = self.machines
        return [
            Rental(product=f"{machines.cloud}/{kind}", region=machines.region, count=count, spot=machines.spot)
            for kind, count in instance_types(spec)
        ]

    def check_hosts(self, num_hosts: int, spares: int) -> None:
        """Refuses more hosts than the file allows.

        Raises:
            ClusterConfigError: with the number that the file allows.
        """
        if num_hosts + spares > self.machines.max_hosts:
            with_spares = f" with {spares} spare(s)" if spares else ""
            raise ClusterConfigError(
                "num_hosts",
                f"must be at most {self.machines.max_hosts}, which is what max_workers allows of node type "
                f"{self.machines.node_type!r} in {self.file}, not {num_hosts}{with_spares}",
            )


def instance_types(spec: "ClusterSpec") -> list[tuple[str, int]]:
    """What a cluster of this provider is made of, and how many of each: `[("p5.48xlarge", 4)]`."""
    assert isinstance(spec.provider, LauncherProviderSpec)
    return [(spec.provider.machines.machine_type, spec.num_hosts + spec.spares)]


def is_launcher(provider: Any) -> bool:
    """Whether a cluster file's `provider`, not yet checked, is this one."""
    return isinstance(provider, Mapping) and provider.get("type") == LauncherProviderSpec.type
