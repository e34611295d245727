"""What a client learns of a cluster that has taken itself down, wherever that was left, and does with it."""

import json

from cluster.farewell import Farewell
from cluster.record import Cluster
from cluster.spec import ClusterSpec
from cluster.tunnel import Tunnel
from launcher.job import JobState
from launcher.job_folder import all_jobs
from launcher.storage import is_on_head, storage_root


def went_down(cluster: Cluster) -> Farewell | None:
    """The last words of this very cluster; None where it runs, or died, or nobody can be asked.

    What is new is kept here, and the jobs' records say how they ended. It may take seconds.
    """
    kept = Farewell.load(cluster.name)
    if kept is not None and kept.cluster_id == cluster.cluster_id:
        return kept
    if not cluster.is_remote:
        return None
    found = Farewell.ask_head(cluster) or (_from_storage(cluster) if cluster.spec.provider.is_paid else None)
    if found is not None:
        found.save()
        _settle(found)
        Tunnel(cluster).close()  # it leads nowhere
    return found


def last_words(name: str) -> Farewell | None:
    """Of the last cluster of that name, as `went_down` finds them; None if it did not take itself down."""
    cluster = Cluster.load(name)
    return Farewell.load(name) if cluster is None else went_down(cluster)


def keep_in_storage(farewell: Farewell, spec: ClusterSpec) -> None:
    """Leaves it beside the jobs' checkpoints, for a head whose disk is deleted; the storage may refuse."""
    from workloads.durable import as_path, write_whole

    root = storage_root(spec.storage_path)
    if is_on_head(spec, root):
        return
    folder = as_path(root) / "ended"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{farewell.cluster_id}.json", json.dumps(farewell.to_json()))
    except OSError as error:
        print(f"the last words of cluster {farewell.name} cannot be kept in {root}: {error}", flush=True)


def _from_storage(cluster: Cluster) -> Farewell | None:
    from workloads.durable import as_path

    root = storage_root(cluster.spec.storage_path)
    if is_on_head(cluster.spec, root):
        return None
    path = as_path(root) / "ended" / f"{cluster.cluster_id}.json"
    try:
        return Farewell.from_json(json.loads(path.read_text()))
    except OSError:  # none is there, or this machine does not reach it
        return None


def _settle(farewell: Farewell) -> None:
    """Records that this client has fetched when their jobs ran say how those ended."""
    for folder in all_jobs():
        job, end = folder.job(), farewell.end_of(**folder.address())
        if job["cluster"] == farewell.name and not JobState(job["state"]).ended and end:
            folder.write_job(job | end)
