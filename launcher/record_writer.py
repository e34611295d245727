"""Writes the record of a job that lives: a disk that refuses ends no job, and is told."""

import asyncio
from collections.abc import Callable
from typing import Any

from launcher.job_folder import JobFolder
from launcher.words import number_of_bytes

RETRY_PERIOD_S = 2.0


class RecordWriter:
    """Writes now, or as soon as the disk takes it, `job.json` last: who reads of an end finds the events before it.

    Args:
        folder: of the job.
        tell: is told, in a sentence, when the disk refuses, and when it has taken all.
    """

    def __init__(self, folder: JobFolder, tell: Callable[[str], None]):
        self._folder = folder
        self._tell = tell
        self._unsaved: dict[str, Any] | None = None
        self._not_saved = ""  # why
        self._retrying: asyncio.Task[None] | None = None

    @property
    def late(self) -> str:
        """Which file lacks something that is kept here, and why; '' if all is on disk."""
        return self._folder.growing.failure or self._not_saved

    def append(self, file: str, value: dict[str, Any]) -> None:
        """As `JobFolder.append`."""
        self._folder.append(file, value)
        self._see_to_late()

    def append_text(self, file: str, text: str) -> None:
        """As `JobFolder.append_text`."""
        self._folder.append_text(file, text)
        self._see_to_late()

    def save(self, job: dict[str, Any]) -> None:
        """Writes `job.json`."""
        self._unsaved = job
        self._save()
        self._see_to_late()

    def write_late(self) -> str:
        """Tries once more to write what waits; returns `late`."""
        self._folder.growing.write_late()
        self._save()
        return self.late

    def give_up(self) -> None:
        """Lets what waits go: the record is removed, or another one has taken its place."""
        if self._retrying is not None:
            self._retrying.cancel()

    def _save(self) -> None:
        if self._unsaved is None or self._folder.growing.failure:
            return
        try:
            self._folder.write_job(self._unsaved)
        except OSError as error:
            self._not_saved = f"{self._folder.path / 'job.json'}: {error.strerror or error}"
        else:
            self._unsaved, self._not_saved = None, ""

    def _see_to_late(self) -> None:
        if not self.late or self._retrying is not None:
            return
        self._retrying = asyncio.get_running_loop().create_task(self._write_when_possible())
        self._tell(
            f"the head cannot write the job's record: {self.late}; the job goes on, and what there is to write is "
            f"kept in the supervisor's memory until it can: make room there"
        )

    async def _write_when_possible(self) -> None:
        await asyncio.sleep(RETRY_PERIOD_S)
        while self.write_late():
            await asyncio.sleep(RETRY_PERIOD_S)
        self._retrying = None
        lost, self._folder.growing.num_given_up = self._folder.growing.num_given_up, 0
        without = f", without {number_of_bytes(lost)} of logs and metrics, more than could be kept" if lost else ""
        self._tell(f"the head has written the job's record{without}")
        self._folder.close()
