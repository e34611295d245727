"""The agent's side of a user's command: its folder, its variables, its process."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from launcher.attempt import RankTask
from launcher.command import FOLDER, NoProgramError, interpreter_words, is_python
from launcher.rank_process import Exit, RankProcess, keep
from launcher.script_saves import saves_folder
from launcher.written_files import note_unpacked

MAX_OUTPUT = 2**20
DRAIN_S = 1.0
BOOTSTRAP = "launcher/rank/_spmd_launch_bootstrap.py"


class Activation(Protocol):
    """A Python environment that a command is to run in; see `launcher.job_environment`."""

    @property
    def python(self) -> Path: ...

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]: ...

    def in_use(self) -> contextlib.AbstractContextManager[int]: ...


async def start_command(
    task: RankTask,
    environment: Mapping[str, str],
    *,
    host: Path,
    code: Path,
    folder: Path,
    own: Activation | None = None,
) -> tuple[RankProcess, bool]:
    """Starts the command of a task in a fresh copy of its folder.

    Returns:
        The process, and whether it will tell how it is: a Python does, other commands are silent.

    Args:
        task: with a command.
        environment: of a process of the user's on this host.
        host: our folder on this host's disk.
        code: the copy of our packages.
        folder: of the attempt, with its log and output; what the command leaves in `output/results` comes back.
        own: the job's own Python environment, which is made; None: it has none.

    Raises:
        NoProgramError: there is no such program on this host, or it cannot be executed.
    """
    assert task.command is not None
    work, output = folder / "work", folder / "output"
    digest, name = task.files[FOLDER]
    await asyncio.to_thread(unpack_folder, host / "files" / digest / name, work)
    await asyncio.to_thread(note_unpacked, work)
    (output / "results").mkdir(parents=True, exist_ok=True)
    storage = str(saves_folder(host.name, task.storage)) if task.own_disk else task.storage
    if "://" not in storage:
        Path(storage).mkdir(parents=True, exist_ok=True)
    words, follows = rank_words(task.command.words, code, str(own.python) if own else sys.executable)
    variables = {
        **environment,
        **task.environment,
        **task.command.variables,
        **attempt_variables(task, output, storage),
    }
    with contextlib.ExitStack() as stack:
        held: list[int] = []
        if own is not None:
            variables |= own.variables(variables)
            held.append(stack.enter_context(own.in_use()))
        if task.command.toolkit:
            place = await asyncio.to_thread(place_toolkit, code, folder)
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [variables.get("PYTHONPATH"), str(place)]))
        control = {"SPMD_LAUNCH_CODE": str(code)} if follows else None
        process = await start_process(
            words, variables, work=work, log=folder / "rank.log", host=host, held=held, control=control
        )
    return process, follows


async def start_process(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    work: Path,
    log: Path,
    host: Path,
    stdin: int = asyncio.subprocess.DEVNULL,
    held: Sequence[int] = (),
    control: Mapping[str, str] | None = None,
) -> RankProcess:
    """Starts a process that leads a group of its own and does not outlive this agent.

    Args:
        words: its command line.
        environment: all its variables.
        work: the folder that it is in.
        log: where both its streams go.
        host: our folder on this host's disk, where it is recorded.
        stdin: what it reads.
        held: further descriptors that it has.
        control: more variables of one that takes the control descriptor; None: it takes none.

    Raises:
        NoProgramError: there is no such program on this host, or it cannot be executed.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    variables = dict(environment)
    if control is not None:
        held = [*held, theirs.fileno()]
        variables |= {"SPMD_LAUNCH_CONTROL_FD": str(theirs.fileno()), **control}
    with theirs, log.open("ab") as stream:
        try:
            process = await asyncio.create_subprocess_exec(
                *words, env=variables, cwd=work, stdin=stdin, stdout=stream, stderr=stream, pass_fds=held,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise NoProgramError(f"{words[0]}: {error.strerror}") from None
    exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
    keep(_wait(process, exited))
    return RankProcess(process.pid, ours, exited, host / "ranks" / f"{process.pid}.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executed:
    """How a command of `exec` ended.

    Attributes:
        code: its exit code; minus the number of the signal that ended it; None: it did not end in time.
        output: both streams, the last MAX_OUTPUT bytes.
        num_cut: bytes of output before these.
        error: why there is none, if it could not be started.
    """

    code: int | None
    output: bytes = b""
    num_cut: int = 0
    error: str = ""


async def execute(words: Sequence[str], environment: Mapping[str, str], work: Path, timeout_s: float) -> Executed:
    """Runs a command to its end, and ends it with all its children after `timeout_s`."""
    try:
        process = await asyncio.create_subprocess_exec(
            _program(words[0], sys.executable), *words[1:], env=dict(environment), cwd=work,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return Executed(code=None, error=f"{words[0]}: {error.strerror}")
    output = Tail()
    reading = asyncio.ensure_future(_read(process, output))
    await asyncio.wait([reading], timeout=timeout_s)
    in_time = reading.done()
    code = await process.wait() if in_time else None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    await asyncio.wait([reading], timeout=DRAIN_S)  # what has left its group may hold the pipe open
    reading.cancel()
    return Executed(code=code, output=bytes(output.data), num_cut=output.num_cut)


class Tail:
    """The last MAX_OUTPUT bytes of what is added."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.num_cut = 0

    def add(self, piece: bytes) -> None:
        self.data += piece
        self.num_cut += max(0, len(self.data) - MAX_OUTPUT)
        del self.data[:-MAX_OUTPUT]


async def _read(process: asyncio.subprocess.Process, output: Tail) -> None:
    assert process.stdout is not None
    while piece := await process.stdout.read(1 << 16):
        output.add(piece)


async def _wait(process: asyncio.subprocess.Process, exited: "asyncio.Future[Exit]") -> None:
    code = await process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # children that outlived it
    exited.set_result(Exit(code=code))


def rank_words(words: Sequence[str], code: Path, python: str) -> tuple[list[str], bool]:
    """The command line as it is started, and whether it follows our lead: a Python that runs something does.

    Args:
        words: as given.
        code: the copy of our packages.
        python: what `python` without a path is.
    """
    program = _program(words[0], python)
    split = interpreter_words(words) if is_python(words[0]) else None
    if split is None:
        return [program, *words[1:]], False
    (_, *options), script = split
    return [program, *options, str(code / BOOTSTRAP), *script], True


def _program(word: str, python: str) -> str:
    return python if is_python(word) and "/" not in word else word


def attempt_variables(task: RankTask, output: Path, storage: str) -> dict[str, str]:
    """What a script may want to know; docs/run.md tells of them."""
    return {
        "SPMD_LAUNCH_JOB": task.job,
        "SPMD_LAUNCH_JOB_DIR": str(output / "results"),
        "SPMD_LAUNCH_ATTEMPT": str(task.attempt),
        "SPMD_LAUNCH_STORAGE_PATH": storage,
        "SPMD_LAUNCH_RANK": str(task.rank),
        "SPMD_LAUNCH_NUM_RANKS": str(task.num_ranks),
    }


def place_toolkit(code: Path, folder: Path) -> Path:
    """A folder for Python's path that has `workloads` of our packages, and none of the others."""
    place = folder / "toolkit"
    place.mkdir()
    (place / "workloads").symlink_to(code / "workloads")
    return place


def unpack_folder(archive: Path, target: Path) -> None:
    """Unpacks a user's folder; nothing in it lands outside."""
    target.mkdir(parents=True, exist_ok=True)
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 on; the archive is our own
    with tarfile.open(archive) as source:
        source.extractall(target, **safely)  # type: ignore[arg-type]
