"""The record of a job that is to go on, with the files that it was given, from wherever they are."""

import contextlib
from collections.abc import Collection

from cluster.record import Cluster
from launcher.errors import FailureError, UserError
from launcher.inputs import lacking_inputs
from launcher.job_folder import JobFolder
from launcher.mirror import fetch_record, read_input
from launcher.record_copy import refresh
from launcher.record_names import find_record, is_valid
from launcher.storage import storage_for, storage_root
from launcher.temporary import temporary_folder


def ended_job(name: str, cluster: Cluster, given: Collection[str]) -> JobFolder:
    """The record of a job that may be resumed: it has ended, or its cluster has.

    What of it is not here comes from the cluster that it goes on on, from its own, or from the storage: a client's copy
    of what a remote head has on record is without the files that the job was given, and may be old.

    Args:
        name: of the job, or NAME.ID.
        cluster: that it is to go on on.
        given: parameters that are given anew, whose files do not matter.

    Raises:
        UserError: no such job, or it has not ended.
        FailureError: the cluster's supervisor does not answer; a copy in the storage is damaged.
    """
    if is_valid(name):
        refresh(cluster, [name], inputs=True)
    job = _find(name, cluster)
    if job.state().ended and not lacking_inputs(job, job.spec(), given):
        return job
    own = Cluster.load(job.job()["cluster"])
    if own is not None and own.alive():
        if own.name != cluster.name:
            with contextlib.suppress(FailureError):  # what is known here, and the storage, may do as well
                refresh(own, [name], inputs=True)
        if not job.state().ended:
            raise UserError(f"--resume {name}: the job is {job.state()}; only one that has ended can be resumed")
    _take_from_storage(job, cluster, given)
    return job


def _find(name: str, cluster: Cluster) -> JobFolder:
    job = find_record(name)
    if job.exists():
        return job
    found = fetch_record(storage_root(cluster.spec.storage_path), name) if is_valid(name) else None
    if found is None:
        raise UserError(f"--resume {name}: no such job, here or in the storage of {cluster.name!r}")
    return found


def _take_from_storage(job: JobFolder, cluster: Cluster, given: Collection[str]) -> None:
    """Copies input files that are lacking still; who needs one that the storage has not either misses it by name."""
    spec = job.spec()
    storage = job.job().get("storage") or storage_for(cluster.spec.storage_path, spec)
    for param in lacking_inputs(job, spec, given):
        file, data = spec.files[param], None
        with contextlib.suppress(OSError, ImportError):  # not every client reaches the storage
            data = read_input(storage, file)
        if data is not None:
            source = temporary_folder() / file.name
            source.write_bytes(data)
            job.keep_input(source, file)
