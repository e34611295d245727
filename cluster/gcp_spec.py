"""What a cluster file says of Cloud TPU slices: where, how they are paid for, and who may log in."""

import dataclasses
import re
from typing import TYPE_CHECKING, Any, ClassVar

from cluster.accelerators import Accelerator
from cluster.access import check_login
from cluster.errors import ClusterConfigError
from cluster.prices import Rental, tpu_rental

if TYPE_CHECKING:  # specs of clusters hold those of providers
    from cluster.spec import ClusterSpec

EVERYWHERE = "-"  # as a zone, which no cluster has: all of them
LOGIN_USER = "spmd-launch"  # the same for all clients, so that each finds the cluster in this user's home
MAX_ADOPTED = 64
_NODE = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
_TEXTS = {
    "project": (r"[a-z]([a-z0-9:.-]{2,60})[a-z0-9]", "the id of a Google Cloud project (not its name or number)"),
    "zone": (rf"[a-z]+-[a-z]+[0-9]+-[a-z]|{EVERYWHERE}", "a zone of Google Cloud, as us-east5-b"),
    "runtime_version": (r"[a-z0-9][a-z0-9._-]{0,99}", "the name of a TPU VM image, as v2-alpha-tpuv5-lite"),
    "reservation": (r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,299}", "the name of a reservation"),
    "network": (r"[a-z][A-Za-z0-9._/:-]{0,299}", "the name of a VPC network"),
    "subnetwork": (r"[a-z][A-Za-z0-9._/:-]{0,299}", "the name of a subnetwork"),
    "service_account": (r"[A-Za-z0-9._-]+@[A-Za-z0-9._-]+", "the e-mail address of a service account"),
    "endpoint": (r"[A-Za-z0-9_.-]+(:[0-9]{1,5})?", "HOST or HOST:PORT of the Cloud TPU API"),
}
_OPTIONAL = tuple(key for key in _TEXTS if key not in ("project", "zone"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GcpTpuProviderSpec:
    """Slices of Cloud TPU, asked for with a queued resource each, or TPU VMs that are there already.

    Attributes:
        project: that is billed.
        zone: of all slices.
        spot: slices that Google may take away at any time, for less.
        reservation: to take them from; a name, or projects/P/locations/Z/reservations/R.
        runtime_version: image of the machines; None: the one of `cluster.accelerators`.
        network, subnetwork: of the machines; None: the project's default.
        service_account: that the machines have; None: the project's default one.
        user: to log in as; None: LOGIN_USER, on adopted machines as ssh decides.
        identity_file: a private key whose public half the machines are given; None: `up` makes one for the cluster.
        os_login: the project has OS Login: no key is given to the machines; `user` is the one that it made for you.
        use_internal_ips: machines have no external address, and this client reaches their internal ones.
        adopt: names of TPU VMs to use, which are neither made nor deleted; empty: slices are requested.
        endpoint: of the API, where it is not the public one (Private Service Connect).
    """

    type: ClassVar[str] = "gcp-tpu"
    accelerators: ClassVar[tuple[str, ...]] = ("tpu",)
    owns_ray: ClassVar[bool] = True
    shares_disk: ClassVar[bool] = False
    over_ssh: ClassVar[bool] = True
    is_paid: ClassVar[bool] = True
    idle_by_default: ClassVar[str] = "1h"  # what nobody has used for an hour was forgotten
    project: str
    zone: str
    spot: bool = False
    reservation: str | None = None
    runtime_version: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    service_account: str | None = None
    user: str | None = None
    identity_file: str | None = None
    os_login: bool = False
    use_internal_ips: bool = False
    adopt: tuple[str, ...] = ()
    endpoint: str | None = None

    def __post_init__(self) -> None:
        for key, (pattern, what) in _TEXTS.items():
            _check_text(key, getattr(self, key), pattern, what)
        for key in ("spot", "os_login", "use_internal_ips"):
            if not isinstance(getattr(self, key), bool):
                raise ClusterConfigError(f"provider.{key}", f"must be true or false, not {getattr(self, key)!r}")
        check_login(self.user, self.identity_file)
        _check_adopted(self.adopt)
        object.__setattr__(self, "adopt", tuple(self.adopt))  # JSON has no tuples
        self._check_together()

    def _check_together(self) -> None:
        if self.spot and self.reservation is not None:
            raise ClusterConfigError("provider.spot", "a reservation is no spot capacity: leave one of them out")
        if self.os_login and self.user is None:
            problem = "is missing: with os_login, the name of `gcloud compute os-login describe-profile`"
            raise ClusterConfigError("provider.user", problem)
        asked = ("spot", "reservation", "runtime_version", "network", "subnetwork", "service_account")
        if self.adopt and (given := next((key for key in asked if getattr(self, key)), None)):
            raise ClusterConfigError(
                f"provider.{given}", "is for slices that are requested; adopted ones are as they are"
            )

    @property
    def place(self) -> str:
        """Where leftovers are looked for, see `cluster.tpu_labelled`."""
        return self.project if self.endpoint is None else f"{self.project}@{self.endpoint}"

    @property
    def parent(self) -> str:
        """What the API calls project and zone."""
        return f"projects/{self.project}/locations/{self.zone}"

    @property
    def login_user(self) -> str | None:
        """Who logs in; None: as ssh decides."""
        return self.user if self.user is not None or self.adopt else LOGIN_USER

    def check_cluster(self, name: str, accelerator: Accelerator, all_slices: int) -> None:
        """Refuses what the rest of a cluster file says, where it does not fit.

        Args:
            name: of the cluster.
            accelerator: of its hosts.
            all_slices: of jobs and spares.

        Raises:
            ClusterConfigError: with the setting.
        """
        if self.zone == EVERYWHERE:
            raise ClusterConfigError("provider.zone", "must be one, for all slices of the cluster")
        if not name[0].isalpha():
            raise ClusterConfigError("name", f"must begin with a letter, as names of TPU VMs do, not {name!r}")
        if not self.adopt and accelerator.runtime_version is None:
            problem = f"the Cloud TPU API makes no {accelerator.name}; provider ssh takes machines that are there"
            raise ClusterConfigError("accelerator", problem)
        if self.adopt and len(self.adopt) != all_slices:
            told = f"{len(self.adopt)} slice(s) are adopted, and the cluster has {all_slices} with its spares"
            raise ClusterConfigError("num_slices", told)

    def rentals(self, spec: "ClusterSpec") -> list[Rental]:
        """See `cluster.prices.Renter`."""
        return [tpu_rental(spec.hardware, slices=spec.all_slices, zone=self.zone, spot=self.spot)]


def runtime_version(spec: "ClusterSpec") -> str:
    """The image that the machines of a cluster get."""
    assert isinstance(spec.provider, GcpTpuProviderSpec)
    version = spec.provider.runtime_version or spec.hardware.runtime_version
    assert version is not None, "`check_cluster` has refused it"
    return version


def _check_text(key: str, value: Any, pattern: str, what: str) -> None:
    if value is None and key in _OPTIONAL:
        return
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ClusterConfigError(f"provider.{key}", f"must be {what}, not {value!r}")


def _check_adopted(names: Any) -> None:
    if not isinstance(names, list | tuple) or len(names) > MAX_ADOPTED:
        raise ClusterConfigError("provider.adopt", f"must be a list of names of TPU VMs, not {names!r}")
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(_NODE, name):
            raise ClusterConfigError("provider.adopt", f"must be names of TPU VMs, not {name!r}")
        if list(names).count(name) > 1:
            raise ClusterConfigError("provider.adopt", f"{name} is there {list(names).count(name)} times")
