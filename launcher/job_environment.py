"""The agent's side of `--requirements`: a job's own Python environment on this host, made once for each content.

One a machine, whatever hosts are emulated there: it lies in the state folder, beside that of the cluster's own Python.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import os
import site
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from cluster.host_environment import MAKE
from launcher.attempt import EnvironmentMade, RankTask
from launcher.command import REQUIREMENTS
from launcher.command_process import start_process
from launcher.lock_requirements import KEEP, NO_UV, find_uv, identity, made_for_jobs
from launcher.rank_process import RankProcess

MAX_SAID = 3000  # bytes of what uv has said that are an error's text


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobEnvironment:
    """Where the environment of a lock file lies on this machine.

    Attributes:
        lock: the file.
        beneath: folders whose packages it sees below its own.
    """

    lock: Path
    beneath: Sequence[str] = ()

    @classmethod
    def of(cls, task: RankTask, host: Path) -> "JobEnvironment | None":
        """That of a task; None: it has none of its own.

        Args:
            task: whose lock file was shipped. A workload needs what this Python has, too.
            host: our folder on this host's disk.
        """
        if REQUIREMENTS not in task.files:
            return None
        return cls.of_file(*task.files[REQUIREMENTS], host, beneath=task.command is None)

    @classmethod
    def of_file(cls, digest: str, name: str, host: Path, *, beneath: bool) -> "JobEnvironment":
        """That of a lock file which was shipped."""
        return cls(lock=host / "files" / digest / name, beneath=site.getsitepackages() if beneath else ())

    @property
    def key(self) -> str:
        return identity(self.lock.read_bytes(), *self.beneath)

    @property
    def folder(self) -> Path:
        return made_for_jobs() / "env" / self.key

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """What activating it sets."""
        path = environment.get("PATH", os.defpath)
        return {"VIRTUAL_ENV": str(self.folder), "PATH": f"{self.folder / 'bin'}{os.pathsep}{path}"}

    def versions(self) -> dict[str, str]:
        """Version of each package of its own, by name."""
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = metadata.distributions(path=[str(self.folder / "lib" / python / "site-packages")])
        return {package.name: package.version for package in packages}

    @contextlib.contextmanager
    def in_use(self) -> Iterator[int]:
        """A descriptor that keeps it from being removed as long as somebody has it open."""
        with (self.folder / ".ready").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield file.fileno()


class Making:
    """The making of an environment, if it is not there yet: a process that marks it as used now.

    Args:
        environment: to be made.
        folder: for what is said.
    """

    def __init__(self, environment: JobEnvironment, folder: Path):
        self.environment = environment
        self.log = folder / "environment.log"
        self._folder = folder
        self._process: RankProcess | None = None
        self._unwanted = False
        self._over = asyncio.Event()

    async def run(self, variables: Mapping[str, str], host: Path) -> EnvironmentMade:
        """Makes it, with these variables for uv; `host` is our folder on this host's disk."""
        began = time.monotonic()
        try:
            if not find_uv(variables):
                return EnvironmentMade(error=NO_UV)
            self._process = await self._start(variables, host)
            if self._unwanted:
                self._process.kill()
            end = await self._process.wait()
        except OSError as error:  # a disk that is full
            return EnvironmentMade(error=str(error))
        finally:
            self._over.set()
        if end.code:
            said = self.log.read_bytes()[-MAX_SAID:].decode(errors="replace").strip()
            return EnvironmentMade(error=said or f"its process ended with code {end.code}")
        versions = await asyncio.to_thread(self.environment.versions)
        return EnvironmentMade(versions=versions, seconds=round(time.monotonic() - began, 3))

    async def _start(self, variables: Mapping[str, str], host: Path) -> RankProcess:
        environment = self.environment
        lock = environment.lock.read_bytes()
        order = {"home": str(made_for_jobs()), "key": environment.key, "version": sys.executable, "keep": KEEP,
                 "lock_bytes": len(lock), "uv": find_uv(variables), "uv_bytes": 0,
                 "beneath": list(environment.beneath)}  # fmt: skip
        self._folder.mkdir(parents=True, exist_ok=True)
        asked = self._folder / "environment.order"
        asked.write_bytes(json.dumps(order).encode() + b"\n" + lock)
        words = [sys.executable, str(MAKE)]
        with asked.open("rb") as stdin:
            return await start_process(
                words, variables, work=self._folder, log=self.log, host=host, stdin=stdin.fileno()
            )

    def last_line(self) -> str:
        """The last that was said, or ''."""
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def kill(self) -> None:
        """Ends it, with all that it has started; one that has not begun yet, too."""
        self._unwanted = True
        if self._process is not None:
            self._process.kill()

    async def end(self) -> None:
        """As `kill`; returns when nothing of it is left."""
        self.kill()
        await self._over.wait()
