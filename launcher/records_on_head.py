"""The folders of a cluster's jobs, on its head: made, found again, opened once more and removed."""

import asyncio
from collections.abc import Iterable

from launcher.blobs import BlobStore
from launcher.errors import FailureError, UserError
from launcher.job import JobSpec
from launcher.job_folder import JobFolder, jobs_folder
from launcher.job_record import JobRecord
from launcher.mirror import fetch_record
from launcher.record_names import describe, owner


class RecordsOnHead:
    """Lives in the supervisor.

    Args:
        cluster: its name.
    """

    def __init__(self, cluster: str):
        self._cluster = cluster
        self._finding = asyncio.Lock()  # who comes second must not fetch over what the first one has begun

    async def find(self, spec: JobSpec, root: str) -> None:
        """Brings the record of a job that ran on other machines from the storage, where this head has none.

        Args:
            spec: of the job.
            root: of the storage.

        Raises:
            UserError: nobody has one, or this head has that of another job of that name.
            FailureError: it cannot be brought.
        """
        job, folder = spec.name, JobFolder(jobs_folder() / spec.name)
        copy = jobs_folder() / f"{job}.{spec.job_id}"
        async with self._finding:
            if folder.exists():
                return self._require_same(folder, spec)
            # This head may have been a client of the cluster that the job ran on.
            if JobFolder(copy).exists() and not folder.path.exists():
                copy.rename(folder.path)
                return None
            try:
                found = await asyncio.to_thread(fetch_record, root, job, spec.job_id)
            except OSError as error:
                raise FailureError(f"--resume {job}: its record cannot be brought from {root}: {error}") from error
        if found is None:
            raise UserError(f"--resume {job}: neither the head nor {root} has a record of it (id {spec.job_id})")
        return None

    def _require_same(self, folder: JobFolder, spec: JobSpec) -> None:
        found = folder.spec()
        if found.job_id == spec.job_id:
            return
        if (owner_cluster := folder.job()["cluster"]) == self._cluster:
            way = f"remove the other job first: spmd-launch jobs --prune {found.name}.{found.job_id}"
        else:  # which nobody is told of here, and we may not remove
            way = f"move its record on the head away first, {folder.path}, which is of cluster {owner_cluster!r}"
        raise UserError(
            f"--resume {spec.name}: the head of cluster {self._cluster!r} has another job of that name on record: "
            f"expected {describe(spec)}, got {describe(found)}; nothing was changed. Let it go on on another "
            f"cluster, or {way}"
        )

    def open(self, spec: JobSpec, blobs: BlobStore, live: JobRecord | None, *, resume: bool) -> JobFolder:
        """The folder of a job that is to run, with its input files.

        Args:
            spec: of the job.
            blobs: that have the files.
            live: record of the last job of that name since the supervisor was started.
            resume: whether that job goes on; else it is a new one.

        Raises:
            UserError: there is a job of that name, or the one to go on has not ended.
            FailureError: the disk refuses.
        """
        try:
            folder = self._reopen(spec, blobs, live) if resume else self._create(spec, blobs)
        except OSError as error:
            raise FailureError(f"the head cannot put job {spec.name!r} on record: {error}; make room there") from error
        if live is not None:
            live.writer.give_up()
        return folder

    def _create(self, spec: JobSpec, blobs: BlobStore) -> JobFolder:
        try:
            folder = JobFolder.create(spec, self._cluster)
        except FileExistsError:
            folder = JobFolder(jobs_folder() / spec.name)
            prune = folder.exists() and folder.job()["cluster"] == self._cluster
            way = f"spmd-launch jobs --prune {spec.name}.{owner(folder.path)}" if prune else f"move {folder.path} away"
            raise UserError(f"there is a job {spec.name!r} already: choose another --name, or {way}") from None
        try:
            _keep_inputs(folder, spec, blobs)
        except OSError:
            folder.remove()  # else it would be on record as a job that waits for hosts
            raise
        return folder

    def _reopen(self, spec: JobSpec, blobs: BlobStore, live: JobRecord | None) -> JobFolder:
        if live is not None:
            if not live.state.ended:
                raise UserError(f"job {spec.name!r} is {live.state}: only a job that has ended can be resumed")
            if live.spec.job_id == spec.job_id:  # another one was removed, and what it has to write with it
                require_written([live])
        folder = JobFolder(jobs_folder() / spec.name)
        self._require_same(folder, spec)
        _keep_inputs(folder, spec, blobs)
        return JobFolder.reopen(spec, self._cluster)

    def remove(self, job: str, job_id: str, live: JobRecord | None) -> bool:
        """Removes the record of a job that has ended: its name can be used again.

        Args:
            job: its name.
            job_id: its id; a record of that name may be another's.
            live: record of the last job of that name since the supervisor was started.

        Returns:
            Whether this cluster had one.

        Raises:
            UserError: it has not ended.
        """
        folder = JobFolder(jobs_folder() / job)
        if not folder.exists() or folder.job()["cluster"] != self._cluster or folder.spec().job_id != job_id:
            return False
        state = folder.state() if live is None else live.state
        if not state.ended:
            raise UserError(f"job {job!r} is {state}: only a job that has ended can be removed")
        if live is not None:
            live.writer.give_up()
        folder.remove()
        return True


def require_written(records: Iterable[JobRecord], way_out: str = "") -> None:
    """Has written what a full disk has kept from it.

    Args:
        records: of jobs.
        way_out: what else to do, as the end of a sentence.

    Raises:
        UserError: the disk refuses still.
    """
    for record in records:
        if record.folder.exists() and (late := record.writer.write_late()):
            raise UserError(
                f"the head cannot write the record of job {record.spec.name!r}, which is {record.state}: {late}; "
                f"make room there{way_out}"
            )


def _keep_inputs(folder: JobFolder, spec: JobSpec, blobs: BlobStore) -> None:
    for file in spec.files.values():
        folder.keep_input(blobs.path(file.sha256), file)
