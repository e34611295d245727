"""One attempt on one host, as its agent sees it: the rank process, what it has said, how it ended."""

import asyncio
import codecs
import contextlib
import dataclasses
import re
import shutil
import signal
import time
from pathlib import Path

from launcher.aftermath import EXIT_QUIETLY_FATAL
from launcher.attempt import HostNews, RankTask
from launcher.certificates import RankFiles
from launcher.command import FOLDER, NO_PARAMETERS, PHASE
from launcher.host_copies import HostCopies
from launcher.oom_kills import OomWatch
from launcher.rank.memory import host_bytes
from launcher.rank_calls import RankCalls
from launcher.rank_process import Message, RankProcess, keep
from launcher.stacks import kernel_state
from launcher.written_files import bring_back

LOG_PERIOD_S = 0.1
SPEAK_PERIOD_S = 1.0
# What a process says that is ended because it has lost its peers: by JAX's client, which aborts it or in some versions
# ends it with exit code 1; by an exception of gloo's that nobody has caught; or by the Python error that this becomes.
# Stacks come after it.
ABANDONED = re.compile(
    rb"JAX distributed service detected fatal errors|gloo::(Io|Timeout)Exception"
    rb"|(?mi:^[\w.]+Error: .*(gloo|nccl|coordination.?service))"
)
ENDS_OF_ABANDONED = (-signal.SIGABRT, EXIT_QUIETLY_FATAL)
LAST_BYTES = 2**20


class HostAttempt:
    """A rank process at work on one `RankTask`.

    Args:
        task: of the rank.
        process: of the rank.
        folder: made; for logs and output.
        copies: answers what the rank asks of its checkpoints; None: they go to a place that all hosts share.

    Attributes:
        keeps_output: whether files that were not fetched are in its folder, which so must stay.
    """

    def __init__(self, task: RankTask, process: RankProcess, folder: Path, copies: HostCopies | None = None):
        self.copies = copies
        self.task = task
        self.process = process
        self.folder = folder
        self.output = folder / "output"
        self.keeps_output = False
        self.log = folder / "rank.log"
        self.black_box = folder / "launches"
        self._oom = OomWatch()
        self.ended = asyncio.Event()
        self.coordinator: Message | None = None  # where this rank has told that it serves, if it does
        self.calls = RankCalls(folder / "calls", process, self.ended)
        self._log_position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may come in two reads
        self._events_to_log = 0  # events up to the last that has text of the log
        self._events: list[Message] = []  # those that the supervisor may not have received
        self._num_dropped = 0
        self._progress: Message | None = None
        self._spoke = time.monotonic()
        self._news = asyncio.Event()
        self._heard = time.monotonic()
        self.output.mkdir(parents=True, exist_ok=True)

    def assignment(self, host: str, address: str, files: Path, tls: RankFiles) -> Message:
        """The one message that turns a fork of the template into a rank."""
        paths = {
            param: str(files / sha256 / name)
            for param, (sha256, name) in self.task.files.items()
            if param not in NO_PARAMETERS
        }
        folder = self.task.files.get(FOLDER)
        return {
            **dataclasses.asdict(self.task),
            "type": "assign",
            "settings": {**self.task.settings, **paths},
            "user_folder": str(files.parent / "folders" / folder[0]) if folder else None,
            "host": host,
            "address": address,
            "output": str(self.output),
            "storage": str(self.copies.folder) if self.copies else self.task.storage,
            "black_box": str(self.black_box),
            "tls": dataclasses.asdict(tls),
            "compile_cache": str(files.parent / "compile-cache"),
            "log": str(self.log),
        }

    def hear(self, message: Message) -> None:
        """Takes a message of the rank; of those about its progress only the last is kept."""
        self._spoke = time.monotonic()
        if message["type"] == "progress":
            self._progress = message
        elif message["type"] == "ask":
            keep(self._answer(message))
        elif message["type"] == "called":
            self._pass_on_log()  # what the call has printed comes before its answer
            self.calls.hear({**message, "events": self._events_to_log})
        else:
            if message["type"] == "coordinator":
                self.coordinator = message
            self._add(message)

    async def _answer(self, question: Message) -> None:
        assert self.copies is not None, "a rank asks nothing where all hosts share a storage"
        answer = await self.copies.answer(question)
        await self.process.send({"type": "answer", "number": question["number"], "answer": answer})

    def silence_s(self) -> float:
        """Seconds since the supervisor last asked."""
        return time.monotonic() - self._heard

    async def news(self, after: int, wait_s: float) -> HostNews:
        """What there is to say beyond the first `after` events; waits up to `wait_s` for the first of them.

        Asking for what comes after some events says that those have arrived, so they are dropped here; until then the
        same question gets the same events, whatever became of an earlier answer.
        """
        self._heard = time.monotonic()
        arrived = max(0, after - self._num_dropped)  # below 0: an old question that was long on its way
        del self._events[:arrived]
        self._num_dropped += arrived
        if not self._events:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)
        self._heard = time.monotonic()
        return HostNews(
            events=list(self._events),
            progress=self._progress,
            silent_s=time.monotonic() - self._spoke,
            state=kernel_state(self.process.pid),
        )

    async def follow(self) -> None:
        """Passes on the log as it grows; says how the process ended, and then what becomes of the files it has left."""
        waiter = keep(self.process.wait())
        while not waiter.done():
            await asyncio.wait([waiter], timeout=LOG_PERIOD_S)
            self._oom.look()
            self._pass_on_log()
        self._pass_on_log(ended=True)
        end = waiter.result()
        shutil.rmtree(self.folder / "tls", ignore_errors=True)  # its key is of no use now, but to a thief
        # The kernel counts what it kills on this host for want of memory, not whom: beside a SIGKILL that is enough.
        out_of_memory = end.code == -signal.SIGKILL and self._oom.has_killed()
        memory = {"peak_bytes": end.peak_bytes, "host_bytes": host_bytes()}
        if self.task.command is not None and end.code == 0:
            self._add({"type": "result", "metrics": {}, "diagnostics": {}, "result_digest": ""})
        how = {"out_of_memory": out_of_memory, "abandoned": end.code in ENDS_OF_ABANDONED and _was_abandoned(self.log)}
        lost = {"lost": end.lost} if end.lost else {}
        brings_back = self.task.command is not None and self.task.rank == 0
        self._add({"type": "exit", "code": end.code, **how, "memory": memory, **lost, "brings_back": brings_back})
        if brings_back:  # after its end is told: other ranks' errors follow from that, and are heard meanwhile
            for line in await self._bring_back():
                self._add({"type": "log", "text": f"{line}\n"})
            self._add({"type": "brought-back"})
        self.ended.set()

    async def _bring_back(self) -> list[str]:
        try:
            return await asyncio.to_thread(bring_back, self.folder / "work", self.output / "results")
        except (OSError, ValueError) as error:  # the end of the process is told, whatever becomes of its files
            return [f"spmd-launch: what was written into the folder is removed with it, as it cannot come: {error}"]

    async def speak(self) -> None:
        """Says that the process is there, for a command that cannot say so itself."""
        place = {"type": "progress", "moves": 1, "phase": PHASE, "step": 0, "total": 0, "launches": 0, "own_s": 0.0}
        while not self.ended.is_set():
            self.hear(place)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), SPEAK_PERIOD_S)

    def _add(self, event: Message) -> None:
        """Records an event; times are this host's monotonic clock, for durations only."""
        self._events.append({**event, "at": time.monotonic()})
        self._news.set()

    def _pass_on_log(self, *, ended: bool = False) -> None:
        if not self.log.exists():
            return
        with self.log.open("rb") as file:
            file.seek(self._log_position)
            data = file.read()
        self._log_position += len(data)
        if text := self._decoder.decode(data, final=ended):
            self._add({"type": "log", "text": text})
            self._events_to_log = self._num_dropped + len(self._events)


def _was_abandoned(log: Path) -> bool:
    """Whether the last that a process said, before it was ended, is that it had lost its peers."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            return ABANDONED.search(file.read()) is not None
    except OSError:  # a command that has said nothing, or its disk fails
        return False
