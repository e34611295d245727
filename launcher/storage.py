"""Where checkpoints go: a place that all hosts reach, and the proof that they do; or the head's own disk."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.record import Cluster, home
from cluster.spec import NO_STORAGE, ClusterSpec
from launcher.errors import FailureError
from launcher.job import JobSpec


def storage_root(storage_path: str | None) -> str:
    """Folder or URL below which every job has its own: the cluster's `storage_path`, or one in the state folder."""
    base = str(home() / "storage") if storage_path in (None, NO_STORAGE) else storage_path
    if "://" not in base:
        base = str(Path(base).expanduser())
    return base.rstrip("/")


def storage_for(storage_path: str | None, spec: JobSpec) -> str:
    """A job's folder for checkpoints: never one of an earlier job of its name, or it would go on from there."""
    return f"{storage_root(storage_path)}/{spec.name}.{spec.job_id}"


def is_on_head(cluster: ClusterSpec, storage: str) -> bool:
    """Whether checkpoints lie on the head's disk, where the other hosts do not reach them but through its keeper."""
    return cluster.head_disk_is_private and Path(storage).is_relative_to(storage_root(None))


async def probe_storage(cluster: Cluster, agents: Sequence[Any]) -> None:
    """Proves that every host reaches the storage, by writing on the first and reading on each."""
    storage = storage_root(cluster.spec.storage_path)
    if is_on_head(cluster.spec, storage):
        return  # an agent writes on its own disk, or does not start at all
    name, text = f".probe-{uuid.uuid4().hex}", uuid.uuid4().hex
    try:
        await agents[0].write_storage.remote(storage, name, text)
        for host, agent in reversed(list(zip(cluster.hosts, agents, strict=True))):
            found = await agent.read_storage.remote(storage, name, remove=agent is agents[0])
            if found != text:
                raise FailureError(f"storage_path {storage}: host {host.name} reads other bytes than were written")
    except OSError as error:  # Ray raises what the agent raised as a subclass of its type, whose text is a traceback
        raise FailureError(
            f"storage_path {storage}: what {cluster.hosts[0].name} wrote cannot be read on every host "
            f"({getattr(error, 'cause', error)}); it must be a folder that all hosts share, gs:// or s3://"
        ) from error
