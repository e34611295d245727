"""What a cluster that has taken itself down has left to say: why, when, and how its jobs stood. A small file.

It lies in `ended/NAME.json` of the head's state folder, and of each client that has read it, until `down` or the next
`up` of that name.
"""

import dataclasses
import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from cluster.record import Cluster, cluster_folder, cluster_names, home, write_json

PREPARED = "farewell.json"  # in the cluster's folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Farewell:
    """The last words of a cluster.

    Attributes:
        name: of the cluster.
        cluster_id: which of that name.
        ended: local time on the head, ISO 8601.
        why: `after 30m without a job`.
        jobs: `{name: {"job_id", "state", "message"}}` of all that were submitted since it came up.
        left: one line for each thing that could not be ended.
    """

    name: str
    cluster_id: str
    ended: str
    why: str
    jobs: Mapping[str, Mapping[str, str]]
    left: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"cluster {self.name} {self.sentence}"

    @property
    def sentence(self) -> str:
        """What it has done, to go on after its name, in the reader's own time."""
        at = datetime.datetime.fromisoformat(self.ended).astimezone()
        return "\n  ".join([f"took itself down at {at:%H:%M} on {at:%d %B}, {self.why}", *self.left])

    def end_of(self, name: str, job_id: str) -> dict[str, str]:
        """State and message of a job; nothing of one that it does not tell of, or of another of that name.

        Args:
            name: of the job.
            job_id: its id; '': whichever has the name.
        """
        end = self.jobs.get(name, {})
        if job_id and end.get("job_id", job_id) != job_id:
            return {}
        return {key: value for key, value in end.items() if key != "job_id"}

    @classmethod
    def now(cls, cluster: Cluster, why: str, jobs: Mapping[str, Mapping[str, str]]) -> "Farewell":
        """Of a cluster that ends at this moment."""
        ended = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        return cls(name=cluster.name, cluster_id=cluster.cluster_id, ended=ended, why=why, jobs=jobs)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Farewell":
        return cls(**{**value, "left": tuple(value["left"])})

    def prepare(self) -> None:
        """Keeps it with what the head has of the cluster, for `cluster.leave` to save when that is gone."""
        write_json(cluster_folder(self.name) / PREPARED, self.to_json())

    @classmethod
    def prepared(cls, name: str) -> "Farewell | None":
        """What `prepare` has kept here."""
        return _read(cluster_folder(name) / PREPARED)

    def save(self) -> None:
        """Keeps it in this machine's state folder."""
        _folder().mkdir(exist_ok=True, mode=0o700)
        write_json(_path(self.name), self.to_json())

    @classmethod
    def load(cls, name: str) -> "Farewell | None":
        """What is kept here of the last cluster of that name, if it took itself down."""
        return _read(_path(name))

    @classmethod
    def ask_head(cls, cluster: Cluster) -> "Farewell | None":
        """What the head of a remote cluster has kept; None where it has nothing, or cannot be asked."""
        from cluster.ssh import SshError
        from cluster.tunnel import Tunnel

        path = Path(cluster.hosts[0].folder).parents[3] / "ended" / f"{cluster.name}.json"
        try:
            found = cls.from_json(json.loads(Tunnel(cluster).ssh.run(["cat", "--", str(path)])))
        except SshError:
            return None
        return found if found.cluster_id == cluster.cluster_id else None


def kept_farewell(name: str) -> Farewell | None:
    """The last words that are kept here of the cluster of that name, unless another of that name has come since."""
    if name not in known_names():  # a person has said it, and it may be no name of a file
        return None
    farewell = Farewell.load(name)
    if farewell is None or name not in cluster_names():
        return farewell
    try:
        cluster = Cluster.load(name)
    except ClusterError:  # another version's, and so another cluster
        return None
    return farewell if cluster is not None and cluster.cluster_id == farewell.cluster_id else None


def forget(name: str) -> None:
    """Removes what is kept here of a cluster that took itself down."""
    _path(name).unlink(missing_ok=True)


def known_names() -> list[str]:
    """Clusters that have left a trace in the state folder, also those that took themselves down."""
    gone = [path.stem for path in _folder().glob("*.json")] if _folder().is_dir() else []
    return sorted({*cluster_names(), *gone})


def _read(path: Path) -> Farewell | None:
    try:
        return Farewell.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return None


def _folder() -> Path:
    return home() / "ended"


def _path(name: str) -> Path:
    return _folder() / f"{name}.json"
