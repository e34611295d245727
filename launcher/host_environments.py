"""The Python environments that jobs ask for, on one host: resolved, made, and ended while they are being made."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.attempt import EnvironmentMade, RankTask
from launcher.job_environment import JobEnvironment, Making
from launcher.lock_requirements import ResolveError, find_uv, lock_requirements
from launcher.requirements import Requirements


class HostEnvironments:
    """What an agent knows of them.

    Args:
        folder: the host's.
        environment: gives the variables of a user's process.
    """

    def __init__(self, folder: Path, environment: Callable[[], Mapping[str, str]]):
        self._folder = folder
        self._environment = environment
        self._makings: dict[str, Making] = {}  # of attempts that have not started

    def has_uv(self) -> bool:
        return bool(find_uv(self._environment()))

    async def lock(self, asked: Requirements, variables: Mapping[str, str], *, beneath: bool) -> dict[str, str]:
        """The `lock` that a requirements file comes to here, or why it is `refused`."""
        environment = {**self._environment(), **variables}
        try:
            return {"lock": await lock_requirements(asked, environment, self._folder / "tmp", beneath=beneath)}
        except ResolveError as error:
            return {"refused": str(error)}

    async def make(self, task: RankTask) -> EnvironmentMade:
        """Makes that of a task where it is not there yet; `end` ends it."""
        own = JobEnvironment.of(task, self._folder)
        assert own is not None, "nobody asks where there are no requirements"
        making = self._makings[task.attempt_id] = Making(own, self._folder / "attempts" / task.attempt_id)
        variables = task.command.variables if task.command is not None else {}
        try:
            return await making.run({**self._environment(), **variables}, self._folder)
        finally:
            del self._makings[task.attempt_id]

    async def of_lock(self, digest: str, name: str) -> tuple[JobEnvironment, str]:
        """That of a workload's lock file, made if need be; and why it could not be, or ''."""
        own = JobEnvironment.of_file(digest, name, self._folder, beneath=True)
        with tempfile.TemporaryDirectory(dir=self._folder / "tmp") as notes:
            made = await Making(own, Path(notes)).run(self._environment(), self._folder)
        return own, made.error

    def says(self, attempt_id: str) -> str:
        """The last that was said while it is made, or ''."""
        making = self._makings.get(attempt_id)
        return making.last_line() if making is not None else ""

    async def end(self, attempt_id: str) -> None:
        """Ends the making of an attempt's; returns when nothing of it is left."""
        if making := self._makings.get(attempt_id):
            await making.end()

    def kill_all(self) -> None:
        """Ends all that are being made, at once."""
        for making in list(self._makings.values()):
            making.kill()
