"""Where checkpoints go: a place that all hosts reach, and the proof that they do; or the head's own disk."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.record import home
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


async def probe_storage(cluster: ClusterSpec, agents: Mapping[str, Any]) -> None:
    """Proves that every host reaches the storage, by writing on the first and reading on each.

    Args:
        cluster: of the hosts.
        agents: Ray handles by host.

    Raises:
        FailureError: one does not.
    """
    storage = storage_root(cluster.storage_path)
    if is_on_head(cluster, storage):
        return  # an agent writes on its own disk, or does not start at all
    name, text = f".probe-{uuid.uuid4().hex}", uuid.uuid4().hex
    first = next(iter(agents))
    try:
        await agents[first].write_storage.remote(storage, name, text)
        for host, agent in reversed(list(agents.items())):
            found = await agent.read_storage.remote(storage, name, remove=host == first)
            if found != text:
                raise FailureError(f"storage_path {storage}: host {host} reads other bytes than were written")
    except OSError as error:  # Ray raises what the agent raised as a subclass of its type, whose text is a traceback
        raise FailureError(
            f"storage_path {storage}: what {first} wrote cannot be read on every host "
            f"({getattr(error, 'cause', error)}); it must be a folder that all hosts share, gs:// or s3://"
        ) from error
