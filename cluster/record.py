"""What exists: the record of a cluster in the state folder, and where things lie there.

$SPMD_LAUNCH_HOME (~/.spmd-launch)
    clusters/NAME/          removed by `down`
        cluster.json        this record, written when all hosts are up
        request.json        what the holder was asked for; there from the first moment
        token               Ray's token, 0600
        authority.key, .pem what signs the certificates of ranks, 0600; see launcher.certificates
        holder.log
        blobs/SHA256        code and input files, once per content
        guard.json          since when it is up, and without a job; see launcher.cost_guard
        last-guard.log      what launcher.last_guard has done on the head, where hosts cost money
        hosts/HOST/         what an emulated host calls its disk
    ended/NAME.json         of a cluster that took itself down, see cluster.farewell
    locks/NAME              held while a command brings NAME up, see launcher.up_lock
    places.json             where clouds were ever used, see cluster.leftovers
    jobs/JOB/               stays, see launcher.job_folder
    saved/HOST/JOB.ID/      stays: what a script has saved on that host, see launcher.script_saves
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.access import Access
from cluster.errors import ClusterConfigError, ClusterError
from cluster.processes import ProcessId
from cluster.slices import SlicePlace
from cluster.spec import ClusterSpec

NAMESPACE = "spmd-launch"  # of our actors in Ray


def home() -> Path:
    """The state folder: `SPMD_LAUNCH_HOME`, or `~/.spmd-launch`."""
    return Path(os.environ.get("SPMD_LAUNCH_HOME") or Path.home() / ".spmd-launch").expanduser().resolve()


def cluster_folder(name: str) -> Path:
    return home() / "clusters" / name


def cluster_names() -> list[str]:
    """Names of all clusters that have left a trace in the state folder, running or not."""
    folder = home() / "clusters"
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


def save_spec(spec: ClusterSpec) -> None:
    """Keeps what was asked for, before anything is begun: with it, what was half made can be removed."""
    home().mkdir(parents=True, exist_ok=True, mode=0o700)  # records of jobs too are nobody else's
    cluster_folder(spec.name).mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(cluster_folder(spec.name) / "spec.json", spec.to_json())


def load_spec(name: str) -> ClusterSpec:
    """What was asked for under that name.

    Raises:
        ClusterError: another version of this code has written it, or it is gone.
    """
    path = cluster_folder(name) / "spec.json"
    try:
        return ClusterSpec.from_json(json.loads(path.read_text()))
    except (FileNotFoundError, ClusterConfigError) as error:
        raise ClusterError(f"cluster {name!r}: {path} is missing or of another version ({error})") from error


def write_json(path: Path, value: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """One host that is up.

    Attributes:
        index: its place in the cluster file; 0 is the head.
        name: unique in the cluster.
        node_id: Ray's identifier, hexadecimal.
        address: where other hosts reach it.
        folder: what is ours on this host's disk.
        place: in a TPU slice; None: it is no TPU.
    """

    index: int
    name: str
    node_id: str
    address: str
    folder: str
    place: SlicePlace | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Host":
        return cls(**{**value, "place": SlicePlace.from_json(value["place"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster that is up, or was when its record was written.

    Attributes:
        spec: what was asked for.
        cluster_id: unique per `up`; every process of the cluster carries it, see `cluster.processes.MARKER`.
        holder: the process that owns the nodes; in a Ray that is not ours, the raylet beside the supervisor.
        gcs_address: host:port of Ray's control service.
        run_folder: a short folder for sockets: on the head Ray's temporary one, elsewhere one of this client's.
        hosts: the head first; ranks count them by slice and worker, see `cluster.slices.rank_units`.
        created: local time, ISO 8601.
        launcher_digest: of the code that its processes run, see `launcher.version_skew`; '' until all are started.
        head_socket: the supervisor's socket on the head, in the record of a client that is not the head; else ''.
        access: the way to its machines, in such a record; else None.
    """

    spec: ClusterSpec
    cluster_id: str
    holder: ProcessId
    gcs_address: str
    run_folder: str
    hosts: tuple[Host, ...]
    created: str
    launcher_digest: str = ""
    head_socket: str = ""
    access: Access | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def folder(self) -> Path:
        return cluster_folder(self.name)

    @property
    def socket(self) -> Path:
        """Where the supervisor listens; short, because a Unix socket's path has at most 107 bytes."""
        return Path(self.run_folder) / "supervisor.sock"

    def actor_name(self, role: str) -> str:
        """What an actor is called in Ray, where there may be other clusters of ours.

        Args:
            role: `supervisor`, or `agent:HOST`.
        """
        return f"{actor_prefix(self.name, self.cluster_id)}{role}"

    @property
    def is_remote(self) -> bool:
        """Whether its head is another machine than this one."""
        return bool(self.head_socket)

    def seen_from_elsewhere(self, spec: ClusterSpec, run_folder: str, access: Access) -> "Cluster":
        """The record of a client that is not the head.

        Args:
            spec: the client's.
            run_folder: the client's.
            access: its way to the hosts.
        """
        return dataclasses.replace(self, spec=spec, run_folder=run_folder, head_socket=str(self.socket), access=access)

    def alive(self) -> bool:
        """Whether it runs; of a remote one, whether its head can be reached (again), which may take seconds."""
        return not self.problem() if self.is_remote else self.holder.alive()

    def problem(self) -> str:
        """Why the head of a remote cluster cannot be reached; '' if it can, and where it is this machine."""
        if not self.is_remote:
            return ""
        from cluster.farewell import Farewell  # here, because they import this module
        from cluster.tunnel import Tunnel

        farewell = Farewell.load(self.name)
        if farewell is not None and farewell.cluster_id == self.cluster_id:
            return f"it {farewell.sentence}"
        return Tunnel(self).open()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"format": 1, "spec": self.spec.to_json()}

    def save(self) -> None:
        write_json(self.folder / "cluster.json", self.to_json())

    @classmethod
    def load(cls, name: str) -> "Cluster | None":
        """The record of that name; None if no cluster of that name is completely up.

        Raises:
            ClusterError: another version of this code has written it.
        """
        try:
            value = json.loads((cluster_folder(name) / "cluster.json").read_text())
        except FileNotFoundError:
            return None
        return cls.from_json(name, value)

    @classmethod
    def from_json(cls, name: str, value: dict[str, Any]) -> "Cluster":
        """The inverse of `to_json`, of a cluster of that name.

        Raises:
            ClusterError: another version of this code has written it.
        """
        try:
            return cls(
                spec=ClusterSpec.from_json(value["spec"]),
                cluster_id=value["cluster_id"],
                holder=ProcessId.from_json(value["holder"]),
                gcs_address=value["gcs_address"],
                run_folder=value["run_folder"],
                hosts=tuple(Host.from_json(host) for host in value["hosts"]),
                created=value["created"],
                launcher_digest=value["launcher_digest"],
                head_socket=value["head_socket"],
                access=Access.from_json(value["access"]) if value["access"] else None,
            )
        except (KeyError, TypeError, ClusterConfigError) as error:
            raise ClusterError(
                f"cluster {name!r} was brought up by another version of spmd-launch, whose record this one cannot read "
                f"({type(error).__name__}: {error}); `spmd-launch down {name} --force` ends it"
            ) from error


def running_clusters() -> list[Cluster]:
    """All clusters whose record is complete and whose holder lives."""
    clusters = [Cluster.load(name) for name in cluster_names()]
    return [cluster for cluster in clusters if cluster is not None and cluster.alive()]


def actor_prefix(name: str, cluster_id: str) -> str:
    """How the names of all actors of a cluster begin."""
    return f"{name}/{cluster_id[:8]}/"


def short_folder(cluster_id: str) -> str:
    """A folder for a cluster's sockets: short, unique; whoever makes it makes it private to this user."""
    base = "/tmp" if os.path.isdir("/tmp") else os.path.expanduser("~")
    return os.path.join(base, "spl-" + hashlib.sha256(cluster_id.encode()).hexdigest()[:8])
