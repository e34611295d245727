"""What exists: the record of a cluster in the state folder, and where things lie there.

$SPMD_LAUNCH_HOME (~/.spmd-launch)
    clusters/NAME/          removed by `down`
        cluster.json        this record, written when all hosts are up
        request.json        what the holder was asked for; there from the first moment
        token               Ray's token, 0600
        authority.key, .pem what signs the certificates of ranks, 0600; see launcher.certificates
        holder.log
        blobs/SHA256        code and input files, once per content
        hosts/HOST/         what an emulated host calls its disk
    jobs/JOB/               stays, see launcher.job_folder
"""

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from cluster.errors import ClusterConfigError, ClusterError
from cluster.processes import ProcessId
from cluster.spec import ClusterSpec


def home() -> Path:
    """The state folder: `SPMD_LAUNCH_HOME`, or `~/.spmd-launch`."""
    return Path(os.environ.get("SPMD_LAUNCH_HOME") or Path.home() / ".spmd-launch").expanduser().resolve()


def cluster_folder(name: str) -> Path:
    return home() / "clusters" / name


def cluster_names() -> list[str]:
    """Names of all clusters that have left a trace in the state folder, running or not."""
    folder = home() / "clusters"
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


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
        index: its place in the order of ranks.
        name: unique in the cluster.
        node_id: Ray's identifier, hexadecimal.
        address: where other hosts reach it.
        folder: what is ours on this host's disk.
    """

    index: int
    name: str
    node_id: str
    address: str
    folder: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster that is up, or was when its record was written.

    Attributes:
        spec: what was asked for.
        cluster_id: unique per `up`; every process of the cluster carries it, see `cluster.processes.MARKER`.
        holder: the process that owns the nodes.
        gcs_address: host:port of Ray's control service.
        ray_folder: Ray's temporary folder, with our socket in it.
        hosts: in the order of ranks.
        created: local time, ISO 8601.
        launcher_digest: of the code that its processes run, see `launcher.version_skew`; '' until all are started.
    """

    spec: ClusterSpec
    cluster_id: str
    holder: ProcessId
    gcs_address: str
    ray_folder: str
    hosts: tuple[Host, ...]
    created: str
    launcher_digest: str = ""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def folder(self) -> Path:
        return cluster_folder(self.name)

    @property
    def socket(self) -> Path:
        """Where the supervisor listens; short, because a Unix socket's path has at most 107 bytes."""
        return Path(self.ray_folder) / "supervisor.sock"

    def alive(self) -> bool:
        return self.holder.alive()

    def save(self) -> None:
        value = dataclasses.asdict(self) | {"format": 1, "spec": self.spec.to_json()}
        write_json(self.folder / "cluster.json", value)

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
        try:
            return cls(
                spec=ClusterSpec.from_json(value["spec"]),
                cluster_id=value["cluster_id"],
                holder=ProcessId.from_json(value["holder"]),
                gcs_address=value["gcs_address"],
                ray_folder=value["ray_folder"],
                hosts=tuple(Host(**host) for host in value["hosts"]),
                created=value["created"],
                launcher_digest=value.get("launcher_digest", ""),
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


def short_folder(cluster_id: str) -> str:
    """Ray's temporary folder for a cluster: short, unique, private to this user."""
    base = "/tmp" if os.path.isdir("/tmp") else os.path.expanduser("~")
    return os.path.join(base, "spl-" + hashlib.sha256(cluster_id.encode()).hexdigest()[:8])
