"""The cluster that was asked for: frozen values, checked once. Imports neither Ray nor JAX."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from cluster.accelerators import CPU, Accelerator, check_counts, check_emulation
from cluster.access import Access, Target, check_login
from cluster.durations import NEVER, check_limit
from cluster.errors import ClusterConfigError, nearest
from cluster.gcp_spec import GcpTpuProviderSpec
from cluster.launcher_spec import LauncherProviderSpec
from cluster.python_setting import check_python, image_of
from cluster.ray_spec import EVERY_NODE, RayProviderSpec
from cluster.setting_names import check_keys
from cluster.slices import is_our_variable

MAX_HOSTS = 64
MAX_DEVICES_PER_HOST = 64
MAX_NAME_LENGTH = 40

# What the checkpoint library can open besides a folder.
STORAGE_SCHEMES = ("gs", "s3")
NO_STORAGE = "none"  # as `storage_path`: there is no place that all hosts reach
_SCHEME_ALIASES = {"gcs": "gs", "google": "gs", "s3a": "s3", "s3n": "s3", "aws": "s3"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalProviderSpec:
    """Emulated hosts: every host is a Ray node on this machine."""

    type: ClassVar[str] = "local"
    accelerators: ClassVar[tuple[str, ...]] = ("cpu",)
    owns_ray: ClassVar[bool] = True  # Ray is ours to start and to end
    shares_disk: ClassVar[bool] = True  # what the head writes into its state folder, all hosts can read
    over_ssh: ClassVar[bool] = False  # hosts are reached and prepared over ssh
    is_paid: ClassVar[bool] = False  # hosts cost money while the cluster is up, so `up` asks
    idle_by_default: ClassVar[str] = NEVER  # `idle_down_after`


@dataclasses.dataclass(frozen=True, kw_only=True)
class SshProviderSpec:
    """Machines that are there already and have an sshd.

    Attributes:
        hosts: `[user@]name[:port]` each; a name of ~/.ssh/config works. The first is the head.
        user: for hosts that do not say theirs; None: as ssh decides.
        identity_file: a private key; None: as ssh decides.
    """

    type: ClassVar[str] = "ssh"
    accelerators: ClassVar[tuple[str, ...]] = ("cpu", "gpu", "tpu")
    owns_ray: ClassVar[bool] = True
    shares_disk: ClassVar[bool] = False
    over_ssh: ClassVar[bool] = True
    is_paid: ClassVar[bool] = False
    idle_by_default: ClassVar[str] = NEVER
    hosts: tuple[str, ...]
    user: str | None = None
    identity_file: str | None = None

    def __post_init__(self) -> None:
        _check_hosts(self.hosts)
        object.__setattr__(self, "hosts", tuple(self.hosts))  # JSON has no tuples
        check_login(self.user, self.identity_file)

    @property
    def access(self) -> Access:
        """The way to the hosts."""
        targets = tuple(Target.parse(host) for host in self.hosts)
        return Access(targets=targets, user=self.user, identity_file=self.identity_file)


ProviderSpec = LocalProviderSpec | SshProviderSpec | RayProviderSpec | GcpTpuProviderSpec | LauncherProviderSpec

# The open set of providers: a new one is a frozen dataclass with these class variables, and a row here.
PROVIDERS: Mapping[str, type[ProviderSpec]] = {
    spec.type: spec
    for spec in (LocalProviderSpec, SshProviderSpec, RayProviderSpec, GcpTpuProviderSpec, LauncherProviderSpec)
}


def _check_hosts(hosts: Any) -> None:
    if not isinstance(hosts, list | tuple) or not hosts:
        raise ClusterConfigError("provider.hosts", f"must be a list of [user@]name[:port], not {hosts!r}")
    labels = [Target.parse(host).label for host in hosts]
    for label in labels:
        if labels.count(label) > 1:
            raise ClusterConfigError("provider.hosts", f"{label} is there {labels.count(label)} times")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """A cluster as the cluster file describes it.

    Attributes:
        name: lower-case letters, digits and dashes; names the cluster's state folder and is said to the CLI.
        provider: where hosts come from, with what that provider needs to know.
        num_hosts: 1 to 64; of a Ray that is not ours also EVERY_NODE: as many as its nodes can be.
        devices_per_host: 1 to 64 JAX devices (emulated ones on `cpu`); a cluster file may leave it out where the
            accelerator tells it.
        accelerator: what the devices are, see `cluster.accelerators`; the provider says which kinds it has.
        emulate: the accelerator is not there: Ray is told that it is, and JAX gets CPU devices in its place.
        spares: hosts beyond num_hosts that stand in for lost ones; 0 to 63, with num_hosts at most 64.
        min_hosts: the fewest hosts on which a job goes on that has lost one and finds no other; None: num_hosts.
        env: variables for every rank, text to text.
        python: what runs on hosts that are not this machine: a version such as "3.12", of which an environment is made
            there, an absolute path to the interpreter of one that is there, or `image:NAME`, a container image whose
            `python3` it is; None: the version that runs here.
        storage_path: where checkpoints go: an absolute folder (`~` is expanded at use, on the host that uses it),
            `gs://` or `s3://`; "none": each host keeps them on its own disk, and the head has a copy of all; None: the
            head's state folder where all hosts share its disk, else as "none".
        idle_down_after: how long the cluster may be without a job before it takes itself down, as `30m` or `1d12h`, or
            "none"; None: as the provider has it.
        max_lifetime: how long after `up` it takes itself down, whatever runs; None: never, as "none".

    Raises:
        ClusterConfigError: naming the setting, what is allowed and what was found.
    """

    name: str
    provider: ProviderSpec
    num_hosts: int
    devices_per_host: int
    accelerator: str = "cpu"
    emulate: bool = False
    spares: int = 0
    min_hosts: int | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    python: str | None = None
    storage_path: str | None = None
    idle_down_after: str | None = None
    max_lifetime: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not isinstance(self.provider, tuple(PROVIDERS.values())):
            raise ClusterConfigError("provider", f"must be one of {', '.join(PROVIDERS)}, not {self.provider!r}")
        _check_count("num_hosts", self.num_hosts, MAX_HOSTS, minimum=1 if self.provider.owns_ray else EVERY_NODE)
        _check_count("devices_per_host", self.devices_per_host, MAX_DEVICES_PER_HOST)
        _check_count("spares", self.spares, MAX_HOSTS - self.num_hosts, minimum=0)
        if self.min_hosts is not None:
            _check_count("min_hosts", self.min_hosts, self.num_hosts or MAX_HOSTS)
        accelerator = Accelerator.parse(self.accelerator)
        check_emulation(accelerator, self.emulate, self.provider.type, self.provider.accelerators)
        hosts = {"num_hosts": self.num_hosts, "spares": self.spares, "min_hosts": self.min_hosts or 0}
        check_counts(accelerator, self.devices_per_host, hosts)
        _check_env(self.env)
        if isinstance(self.provider, SshProviderSpec):
            _check_enough_hosts(self.provider, self.num_hosts, self.spares)
        if isinstance(self.provider, LauncherProviderSpec):
            self.provider.check_hosts(self.num_hosts, self.spares)
        if isinstance(self.provider, GcpTpuProviderSpec):
            self.provider.check_cluster(self.name, accelerator, self.all_slices)
        if self.python is not None:
            if not self.provider.over_ssh:
                problem = f"is for hosts over ssh; provider {self.provider.type} has its own Python"
                raise ClusterConfigError("python", problem)
            check_python(self.python, self.jax_hardware.kind, self.storage_path)
        if self.storage_path is not None:
            _check_storage_path(self.storage_path)
        for key in ("idle_down_after", "max_lifetime"):
            if (limit := getattr(self, key)) is not None:
                if not self.provider.owns_ray:
                    raise ClusterConfigError(key, f"is for hosts of ours; those of provider {self.provider.type} go on")
                object.__setattr__(self, key, check_limit(key, limit))

    def is_met_by(self, found: "ClusterSpec") -> bool:
        """Whether a cluster with the spec `found` is what is asked for here."""
        return dataclasses.replace(self, num_hosts=self.num_hosts or found.num_hosts) == found

    @property
    def hardware(self) -> Accelerator:
        """What Ray is told that hosts have."""
        return Accelerator.parse(self.accelerator)

    @property
    def all_slices(self) -> int:
        """How many slices there are, those of spares too; hosts, where they are no TPUs."""
        return (self.num_hosts + self.spares) // self.hardware.hosts_per_slice

    @property
    def jax_hardware(self) -> Accelerator:
        """What JAX is to find on them."""
        return CPU if self.emulate else self.hardware

    @property
    def image(self) -> str | None:
        """The container image in which our commands run on hosts; None: they run on the hosts themselves."""
        return image_of(self.python)

    @property
    def head_disk_is_private(self) -> bool:
        """Whether other hosts reach what lies in the head's state folder only through its keeper."""
        return self.storage_path == NO_STORAGE or not self.provider.shares_disk

    @property
    def idle_limit(self) -> str | None:
        """After how long without a job it takes itself down; None: never."""
        limit = self.idle_down_after or self.provider.idle_by_default
        return None if limit == NEVER else limit

    @property
    def lifetime_limit(self) -> str | None:
        """How long after `up` it takes itself down; None: never."""
        return None if self.max_lifetime == NEVER else self.max_lifetime

    @property
    def rents_hosts(self) -> bool:
        """Whether `up` makes hosts that cost money until they are deleted; those that it adopts are somebody's."""
        return self.provider.is_paid and not (isinstance(self.provider, GcpTpuProviderSpec) and self.provider.adopt)

    @property
    def storage_outlives_hosts(self) -> bool:
        """Whether checkpoints go to a place that is there when no host is."""
        return self.storage_path not in (None, NO_STORAGE)

    def to_json(self) -> dict[str, Any]:
        """A dict that JSON can hold, in the form of the cluster file."""
        provider = {"type": self.provider.type} | dataclasses.asdict(self.provider)
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {
            "provider": provider,
            "env": dict(self.env),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ClusterSpec":
        """The inverse of `to_json`; every check is made again.

        Raises:
            ClusterConfigError: also for keys that are missing or that this version does not know.
        """
        given = dict(value)
        if "provider" in given:
            given["provider"] = provider_from_json(given["provider"])
            if isinstance(given["provider"], SshProviderSpec) and isinstance(given.get("spares", 0), int):
                given.setdefault("num_hosts", len(given["provider"].hosts) - given.get("spares", 0))
            if isinstance(given["provider"], RayProviderSpec):
                given.setdefault("num_hosts", EVERY_NODE)
            if isinstance(given["provider"], GcpTpuProviderSpec) and "num_hosts" not in given:
                given.setdefault("num_slices", len(given["provider"].adopt) or 1)
        if "num_slices" in given:
            given["num_hosts"] = _hosts_of_slices(given.pop("num_slices"), given)
        if "devices_per_host" not in given and "accelerator" in given:
            told = Accelerator.parse(given["accelerator"]).devices_per_host
            given |= {} if told is None else {"devices_per_host": told}
        check_keys(given, cls)
        return cls(**given)


def provider_from_json(value: Any) -> ProviderSpec:
    """The provider that `{"type": ..., ...}` describes.

    Raises:
        ClusterConfigError: an unknown or missing type, or a key that this provider does not have.
    """
    if not isinstance(value, Mapping) or "type" not in value:
        types = ", ".join(PROVIDERS)
        raise ClusterConfigError("provider", f"must be {{type: TYPE}} with a TYPE of {types}, not {value!r}")
    kind = value["type"]
    if not isinstance(kind, str) or kind not in PROVIDERS:
        hint = nearest(str(kind), PROVIDERS)
        raise ClusterConfigError("provider.type", f"must be one of {', '.join(PROVIDERS)}, not {kind!r}{hint}")
    options = {key: option for key, option in value.items() if key != "type"}
    check_keys(options, PROVIDERS[kind], "provider.", also=("type",))
    return PROVIDERS[kind](**options)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name) and len(name) <= MAX_NAME_LENGTH:
        return
    fixed = re.sub(r"[^a-z0-9]+", "-", name.lower())[:MAX_NAME_LENGTH].strip("-") if isinstance(name, str) else ""
    raise ClusterConfigError(
        "name",
        f"must be 1 to {MAX_NAME_LENGTH} of a-z, 0-9 and dashes, beginning and ending with a letter or digit, "
        f"not {name!r}" + (f"; did you mean {fixed!r}?" if fixed else ""),
    )


def _check_count(key: str, value: Any, maximum: int, minimum: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise ClusterConfigError(key, f"must be a whole number from {minimum} to {maximum}, not {value!r}")


def _hosts_of_slices(num_slices: Any, given: Mapping[str, Any]) -> int:
    """How many hosts the slices that jobs get have; a `num_hosts` that says otherwise is refused."""
    accelerator = Accelerator.parse(given.get("accelerator", CPU.name))
    if accelerator.kind != "tpu":
        raise ClusterConfigError("num_slices", f"is for TPU slices; {accelerator.name} has none: num_hosts")
    _check_count("num_slices", num_slices, MAX_HOSTS // accelerator.hosts_per_slice)
    hosts: int = num_slices * accelerator.hosts_per_slice
    if given.get("num_hosts", hosts) != hosts:
        told = f"{num_slices} of {accelerator.name} are {hosts} hosts, and num_hosts is {given['num_hosts']!r}"
        raise ClusterConfigError("num_slices", f"{told}: leave one of them out")
    return hosts


def _check_enough_hosts(provider: SshProviderSpec, num_hosts: int, spares: int) -> None:
    if num_hosts + spares != len(provider.hosts):
        raise ClusterConfigError(
            "num_hosts",
            f"with the spares must be the {len(provider.hosts)} hosts of the provider, not {num_hosts} and {spares}",
        )


def _check_env(env: Any) -> None:
    if not isinstance(env, Mapping):
        raise ClusterConfigError("env", f"must be variables and their values, as in {{NAME: value}}, not {env!r}")
    for name, value in env.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ClusterConfigError(
                f"env.{name}", "the name of a variable is letters, digits and _, beginning with no digit"
            )
        if is_our_variable(name):
            raise ClusterConfigError(f"env.{name}", "is ours: it says which host of which slice a rank is on")
        if not isinstance(value, str) or "\0" in value:
            raise ClusterConfigError(f"env.{name}", f"must be text ('' for the empty one), not {value!r}")


def _check_storage_path(path: Any) -> None:
    allowed = "must be an absolute folder (or one that begins with ~), gs://BUCKET/..., s3://BUCKET/... or none"
    if not isinstance(path, str):
        raise ClusterConfigError("storage_path", f"{allowed}, not {path!r}")
    scheme, separator, rest = path.partition("://")
    if separator and (scheme not in STORAGE_SCHEMES or not rest.strip("/")):
        hint = nearest(scheme, STORAGE_SCHEMES, _SCHEME_ALIASES) if scheme not in STORAGE_SCHEMES else ""
        raise ClusterConfigError("storage_path", f"{allowed}, not {path!r}{hint}")
    if not separator and path != NO_STORAGE and not path.startswith(("/", "~")):
        raise ClusterConfigError("storage_path", f"{allowed}, not {path!r}")
