"""The agent: one detached Ray actor a host, which starts and watches that host's rank process. Knows no JAX.

It keeps one template, a process that has imported everything but touched no device; each attempt's rank is a fresh fork
of it. A job that brings other code starts from a new template, which becomes warm when the attempt runs, not before.
"""

import asyncio
import contextlib
import dataclasses
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import ray.util

from cluster.abandoned import end_abandoned_ranks
from cluster.leave import leave
from cluster.processes import MARKER
from launcher.attempt import AGENT_RESTARTED, EnvironmentMade, HostFacts, HostNews, RankTask
from launcher.blobs import store_file
from launcher.certificates import RankFiles, new_request, write_files
from launcher.code_copy import unpack
from launcher.command import FOLDER
from launcher.command_process import Executed, execute, start_command
from launcher.device_count import count_devices
from launcher.environment import command_environment, flags_that_matter, rank_environment, threads_for_user_code
from launcher.host_attempt import HostAttempt
from launcher.host_copies import HostCopies
from launcher.host_environments import HostEnvironments
from launcher.host_notices import HostNotices
from launcher.host_sockets import HostSockets, look_at_sockets
from launcher.host_starts import HostStarts
from launcher.host_templates import HostTemplates
from launcher.job_environment import JobEnvironment
from launcher.left_files import LeftFiles, list_files, read_piece, set_aside
from launcher.notices import Notice
from launcher.own_thread import in_own_thread
from launcher.process_watch import end_with_raylet
from launcher.rank.black_box import read_black_box
from launcher.rank_process import RankProcess, keep
from launcher.requirements import Requirements
from launcher.script_saves import Saves, look_at_saves, saves_folder
from launcher.stacks import take_stacks
from launcher.user_process import inspect, user_folder
from workloads.processor import processor_name
from workloads.registry import WORKLOADS
from workloads.versions import versions

EARLIER_ENDS_S = 5.0


class Agent:
    """Runs on its host as an async Ray actor.

    Args:
        host: this host's name.
        folder: ours on this host's disk.
        accelerator: kind of the devices that JAX is to find here.
        devices_per_host, cluster_env: as in the cluster file.
        code_digest: of the code that the template runs until a job brings another.
        owns_ray: whether the Ray node is ours, and a holder watches over this host.
        keeper: Ray handle of the head's keeper of checkpoints; None: all hosts share a storage.
    """

    def __init__(
        self,
        host: str,
        folder: str,
        accelerator: str,
        devices_per_host: int,
        cluster_env: dict[str, str],
        code_digest: str,
        owns_ray: bool,
        keeper: Any = None,
    ):
        self.host = host
        self.folder = Path(folder)
        self.address = ray.util.get_node_ip_address()  # of its raylet: another, where another machine is the host now
        self.accelerator = accelerator
        self.devices_per_host = devices_per_host
        self.cluster_env = cluster_env
        self.code_digest = code_digest
        self.keeper = keeper
        self.found: dict[str, Any] = {}  # devices, as last counted
        self.templates = HostTemplates(self.folder, self._environment)
        self.environments = HostEnvironments(self.folder, self._command_environment)
        self.attempts: dict[str, HostAttempt] = {}
        self.starts = HostStarts()
        self.keys: dict[str, bytes] = {}  # of attempts that have not started
        # Of the agent before this one, if there was one: nobody can ask for what its ranks have left.
        end_abandoned_ranks(self.folder, os.environ.get(MARKER, ""))
        shutil.rmtree(self.folder / "attempts", ignore_errors=True)
        for name in ("home", "tmp", "work", "code", "files", "folders", "ranks", "attempts"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        end_with_raylet(owns_ray, self._kill_ranks)
        self.notices = HostNotices(host, os.environ | cluster_env)

    # -- what is on this host

    async def has(self, digests: list[str]) -> list[str]:
        """Which of these digests are already here, as code or as files."""
        return [
            digest for digest in digests if self._code(digest).exists() or (self.folder / "files" / digest).exists()
        ]

    async def put_code(self, digest: str, archive: bytes) -> None:
        """Unpacks a copy of our packages; see `launcher.code_copy`."""
        await asyncio.to_thread(unpack, archive, self._code(digest), digest)

    async def base_code(self) -> str:
        """The digest of the code that the template runs; of a host that is new, the one that `up` brought."""
        return self.code_digest

    async def put_file(self, digest: str, name: str, data: bytes) -> None:
        """Stores an input file under its content's digest."""
        await asyncio.to_thread(store_file, self.folder / "files" / digest, name, data)

    async def facts(self) -> HostFacts:
        """Looks at this host, counting its devices in a short-lived process."""
        environment = self._environment(self.code_digest)
        if not self.found or self.accelerator == "cpu" or not self._busy():  # a rank holds its host's TPU chips
            self.found = await count_devices(environment, self.folder / "work")
        hostname = socket.gethostname()
        return HostFacts(
            host=self.host,
            versions=versions(),
            code_digest=self.code_digest,
            flags=flags_that_matter(environment),
            num_devices=self.found["num_devices"],
            device_kind=self.found["device_kind"],
            hostname=hostname,
            resolves_to=_resolve(hostname),
            clock=time.time(),
            processor=processor_name(),
        )

    async def sockets(self) -> HostSockets:
        """What the cluster's processes on this machine listen on."""
        return await asyncio.to_thread(look_at_sockets, self.host, self.address, list(self.attempts.values()))

    async def clock(self) -> float:
        """Seconds since the epoch, by this host's clock."""
        return time.time()

    async def notice(self, known: int, wait_s: float) -> tuple[int, Notice | None]:
        """The notice that this host is to go, see `HostNotices.wait`."""
        return await self.notices.wait(known, wait_s)

    async def write_storage(self, storage: str, name: str, text: str) -> None:
        """Writes a small file under `storage`, to be read on another host."""
        from etils import epath

        folder = epath.Path(storage)
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread((folder / name).write_text, text)

    async def read_storage(self, storage: str, name: str, remove: bool) -> str:
        """Reads what another host wrote under `storage`."""
        from etils import epath

        path = epath.Path(storage) / name
        text: str = await asyncio.to_thread(path.read_text)
        if remove:
            await asyncio.to_thread(path.unlink)
        return text

    async def saves(self, storage: str) -> Saves:
        """What this host has of the saves of a script, whose job has this storage."""
        return await asyncio.to_thread(look_at_saves, saves_folder(self.folder.name, storage))

    # -- template

    async def fill_standby(self) -> None:
        """Makes the template warm, starting it if there is none."""
        await self.templates.fill(self.code_digest)

    async def standby_state(self) -> str:
        """`WARM`, `warming`, or `none`."""
        return self.templates.state(self.code_digest)

    async def inspect(
        self, question: dict[str, Any], code_digest: str, folder: tuple[str, str] | None, lock: tuple[str, str] | None
    ) -> dict[str, Any]:
        """Imports a workload in a process of its own and tells its parameters; in the environment of `lock`, if any."""
        own = None
        if lock is not None:
            own, problem = await self.environments.of_lock(*lock)
            if problem:
                return {"refused": f"host {self.host} cannot make the environment:\n{problem}"}
        place = await user_folder(self.folder, *folder) if folder else self.folder / "work"
        return await inspect(question, self._environment(code_digest), place, own)

    async def execute(self, words: list[str], timeout_s: float) -> Executed:
        """Runs a command on this host, beside whatever runs; ends it after `timeout_s`."""
        return await execute(words, self._command_environment(), self.folder / "work", timeout_s)

    async def leave(self, cluster: str, cluster_id: str) -> None:
        """Begins to end all that the cluster has on this machine, this process too."""
        await asyncio.to_thread(leave, cluster, cluster_id)

    # -- environments of jobs

    async def lock_requirements(
        self, requirements: dict[str, Any], variables: dict[str, str], beneath: bool
    ) -> dict[str, str]:
        """The `lock` that a requirements file comes to here, or why it is `refused`."""
        answer = await self.environments.lock(Requirements(**requirements), variables, beneath=beneath)
        return {**answer, "refused": f"host {self.host}: {answer['refused']}"} if "refused" in answer else answer

    async def has_uv(self) -> bool:
        """Whether environments can be made here."""
        return self.environments.has_uv()

    async def make_environment(self, task: RankTask) -> EnvironmentMade:
        """Makes the environment of a task where it is not there yet; `stop` ends it."""
        return await self.environments.make(task)

    async def making_says(self, attempt_id: str) -> str:
        """The last that was said while it is made, or ''."""
        return self.environments.says(attempt_id)

    # -- attempts

    async def certificate_request(self, attempt_id: str) -> bytes:
        """Makes a key for this host's rank of an attempt; the key stays here, and what asks for its signature goes."""
        self.keys[attempt_id], request = new_request()
        return request

    async def start(self, task: RankTask) -> int:
        """Starts this host's rank of an attempt; returns its pid. Of an earlier attempt nothing goes on.

        Raises:
            RuntimeError: the attempt was stopped meanwhile.
        """
        with self.starts.begin(task.attempt_id):
            await self._end_earlier()
            return await self._start(task)

    async def _end_earlier(self) -> None:
        """Returns when they are gone, as they may hold the devices; a process that does not die is not waited for."""
        for earlier in self.attempts.values():
            earlier.process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EARLIER_ENDS_S):
                await asyncio.gather(*(earlier.process.exited() for earlier in self.attempts.values()))

    async def _start(self, task: RankTask) -> int:
        self.code_digest = task.code_digest
        task = self._with_threads(task)
        folder = self.folder / "attempts" / task.attempt_id
        tls = self._write_certificate(task, folder)
        try:
            process, speaks = await self._start_process(task, folder)
            if self.starts.is_stopped(task.attempt_id):
                process.kill()
                await process.wait()
                raise RuntimeError(f"attempt {task.attempt_id} was stopped while its rank started on {self.host}")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # a key that nobody uses
            raise
        copies = HostCopies(self.keeper, task, self.folder / "storage") if task.own_disk else None
        attempt = HostAttempt(task, process, folder, copies)
        self.attempts[task.attempt_id] = attempt
        assignment = attempt.assignment(self.host, self.address, self.folder / "files", tls)
        await process.assign(assignment, attempt.hear, attempt.silence_s)
        keep(attempt.follow())
        if task.command is not None:
            attempt.hear({"type": "joined"})  # whether it calls JAX at all is its own affair
        if not speaks:
            keep(attempt.speak())
        return process.pid

    def _with_threads(self, task: RankTask) -> RankTask:
        if task.command is not None or task.workload in WORKLOADS or "NPROC" in {**os.environ, **self.cluster_env}:
            return task
        threads = threads_for_user_code(self.accelerator, self.devices_per_host)
        return dataclasses.replace(task, environment={**threads, **task.environment})

    async def _start_process(self, task: RankTask, folder: Path) -> tuple[RankProcess, bool]:
        """The rank of a task, and whether it tells how it is."""
        own = JobEnvironment.of(task, self.folder)
        if task.command is not None:
            environment, code = self._command_environment(), self._code(task.code_digest)
            return await start_command(task, environment, host=self.folder, code=code, folder=folder, own=own)
        if FOLDER in task.files:
            await user_folder(self.folder, *task.files[FOLDER])
        return await self.templates.fork(task.code_digest, own), True

    async def tell(self, attempt_id: str, message: dict[str, Any]) -> None:
        """Passes a message on to the rank: where rank 0 serves, that a profile is wanted, that its gang ends."""
        await self.attempts[attempt_id].process.send(message)

    async def events(self, attempt_id: str, after: int, wait_s: float) -> HostNews:
        """What the rank has said beyond the first `after` events, and how it is; see `HostAttempt.news`."""
        if attempt_id not in self.attempts:
            return HostNews(events=[{"type": "exit", "code": -1, "lost": AGENT_RESTARTED}])
        return await self.attempts[attempt_id].news(after, wait_s)

    async def stacks(self, attempt_id: str) -> str:
        """What every thread of the rank is doing."""
        attempt = self.attempts.get(attempt_id)
        if attempt is None or not attempt.process.running:
            return "this rank does not run"
        return await asyncio.to_thread(take_stacks, attempt.process.pid, attempt.log)

    async def launches(self, attempt_id: str) -> dict[str, Any] | None:
        """What the rank has launched, dead or alive; None if nothing. An agent that was restarted knows no attempt."""
        return read_black_box(self.attempts[attempt_id].black_box)

    async def stop(self, attempt_id: str) -> None:
        """Ends the rank and its children, its start, or the making of its environment; returns when they are gone."""
        await self.environments.end(attempt_id)
        await self.starts.stop(attempt_id)
        attempt = self.attempts.get(attempt_id)
        if attempt is not None:
            attempt.process.kill()
            await attempt.ended.wait()

    # -- calls of an interactive gang, see `launcher.rank_calls`

    async def call(self, attempt_id: str, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """Has the rank call a function."""
        return await self.attempts[attempt_id].calls.call(request, payload)

    async def returned(self, attempt_id: str, number: int, offset: int) -> bytes:
        """A further piece of what a call has returned; after the last it is gone."""
        return await self.attempts[attempt_id].calls.piece(number, offset)

    async def interrupt(self, attempt_id: str, number: int) -> None:
        """Interrupts the rank, if it is in that call."""
        self.attempts[attempt_id].calls.interrupt(number)

    async def collect(self, attempt_id: str) -> LeftFiles:
        """Files that the rank left in its output folder."""
        return await in_own_thread(list_files, self.attempts[attempt_id].output)

    async def read(self, attempt_id: str, path: str, offset: int, length: int) -> bytes:
        """A piece of a file that `collect` named."""
        return await in_own_thread(read_piece, self.attempts[attempt_id].output / path, offset, length)

    async def keep_output(self, attempt_id: str, fetched: list[str]) -> str:
        """Keeps what the rank left, but for files that were fetched, when the attempt is forgotten; returns where."""
        attempt = self.attempts[attempt_id]
        attempt.keeps_output = True  # if it cannot be moved, or not soon, it stays where it is
        place = await in_own_thread(set_aside, attempt.output, self.folder / "left" / attempt_id, fetched)
        attempt.keeps_output = False
        return place

    async def forget(self, attempt_id: str) -> None:
        """Removes what an attempt left on this host, and is not to be kept."""
        attempt = self.attempts.pop(attempt_id, None)
        if attempt is None or not attempt.keeps_output:
            await asyncio.to_thread(shutil.rmtree, self.folder / "attempts" / attempt_id, ignore_errors=True)

    async def forget_steps(self, storage: str) -> None:
        """Removes this host's copies of a job's checkpoints, where the head has them all."""
        await asyncio.to_thread(shutil.rmtree, self.folder / "storage" / Path(storage).name, ignore_errors=True)

    # -- inside

    def _kill_ranks(self) -> None:
        """At once: a frozen one cannot see that this process ends, nor can its children."""
        for attempt in list(self.attempts.values()):
            attempt.process.kill()
        self.environments.kill_all()

    def _code(self, digest: str) -> Path:
        return self.folder / "code" / digest

    def _write_certificate(self, task: RankTask, folder: Path) -> RankFiles:
        key = self.keys.pop(task.attempt_id, None)
        if key is None or task.certificate is None:
            raise RuntimeError(AGENT_RESTARTED)  # it has made the key in its last life, and kept it in memory
        return write_files(folder / "tls", key, task.certificate)

    def _environment(self, code_digest: str) -> dict[str, str]:
        return rank_environment(
            host_folder=self.folder,
            code=self._code(code_digest),
            accelerator=self.accelerator,
            devices_per_host=self.devices_per_host,
            cluster_env=self.cluster_env,
        )

    def _command_environment(self) -> dict[str, str]:
        return command_environment(
            host_folder=self.folder,
            accelerator=self.accelerator,
            devices_per_host=self.devices_per_host,
            cluster_env=self.cluster_env,
        )

    def _busy(self) -> bool:
        return any(attempt.process.running for attempt in self.attempts.values())


def _resolve(hostname: str) -> str:
    try:
        return socket.gethostbyname(hostname)
    except OSError:
        return "-"
