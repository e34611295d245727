"""An interactive gang on its ranks: take a call, run it, answer, wait for the next.

The loop is the job's workload, so that rendezvous, certificates, program barrier and watchdog are those of any job.
"""

import contextlib
import dataclasses
import hashlib
import os
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from launcher.interactive import CALL, END, IDLE
from launcher.rank.arrays import ArrayStore, local, whole
from launcher.rank.control import Control, Message
from launcher.rank.error_parts import error_parts
from workloads.agreement.user_launches import watch_launches, why_unsupported
from workloads.context import Context
from workloads.exchange import rounds_of_all
from workloads.params import check_params, param
from workloads.result import Result

MAX_FUNCTIONS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Parameters of a gang."""

    x64: bool = param(False, "64-bit floating point throughout")
    precision: str = param("default", "of matrix products", choices=("default", "high", "highest"))
    watch_launches: bool = param(True, "record launches of all programs that span hosts, and compare them")

    def __post_init__(self) -> None:
        check_params(self)


class Session:
    """One rank's side of a gang; stands where a workload stands.

    Args:
        control: to the agent.
        folder: the copy of the user's folder, whose modules can be imported; None: there is none.
    """

    def __init__(self, control: Control, folder: Path | None):
        self._control = control
        self._folder = folder
        self._functions: OrderedDict[str, Callable[..., Any]] = OrderedDict()
        self._arrays = ArrayStore()
        self._interruptible = False

    def config_class(self) -> type:
        return Config

    def run_function(self) -> Callable[..., Result]:
        return self.run

    def run(self, config: Config, context: Context, resume: bool = False) -> Result:
        """Serves until it is told to end."""
        if self._folder is not None:
            sys.path.append(str(self._folder))
        if config.watch_launches and not watch_launches(context.launches):
            context.emit({"type": "launches-unwatched", "why": why_unsupported()})
        signal.signal(signal.SIGINT, self._interrupt)
        num_calls = 0
        while True:
            context.emit({"type": "phase", "phase": IDLE})
            request = self._control.receive()
            if request["type"] == END:
                return Result(metrics={"calls": num_calls}, diagnostics={}, result_digest="")
            context.emit({"type": "phase", "phase": f"{CALL} {request['name']}"})
            answer = self._answer(request)
            launches = context.launches.snapshot()
            answer["place"] = [launches.count, launches.digest, rounds_of_all(context.num_ranks)]
            self._control.send(answer)
            num_calls += 1

    def _answer(self, request: Message) -> Message:
        """What came of one call; nothing that the user's function does leaves this."""
        began = time.monotonic()
        file = Path(request["file"])
        try:
            self._interruptible = True
            answer = self._called(request, file)
            self._interruptible = False
        except BaseException as error:  # noqa: BLE001 - SystemExit and an interrupt too are told, and the gang goes on
            self._interruptible = False
            self._arrays.free([[request["number"], None]])
            file.with_suffix(".answer").unlink(missing_ok=True)
            told = {"type": type(error).__name__, "message": str(error), "parts": error_parts(error)}
            answer = {"outcome": "raised", "error": told}
        finally:
            file.unlink(missing_ok=True)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the function may have closed it
                stream.flush()
        seconds = round(time.monotonic() - began, 6)
        return {"type": "called", "number": request["number"], "seconds": seconds, **answer}

    def _called(self, request: Message, file: Path) -> Message:
        self._arrays.free(request["free"])
        with file.open("rb") as payload:
            function = self._function(payload.read(request["function_bytes"]))
            args, kwargs = self._arrays.loads(payload.read(), may_lack=function in (local, whole))
        value = function(*args, **kwargs)
        self._arrays.begin(request["number"])
        leaves = self._arrays.describe(value) if request["compare"] else []
        # Where nobody asks for it too: so all ranks keep the same arrays.
        self._arrays.dump(value, file.with_suffix(".answer") if request["sent"] else Path(os.devnull))
        self._arrays.finish()
        return {"outcome": "returned", "leaves": leaves}

    def _function(self, data: bytes) -> Callable[..., Any]:
        """The function; the same object for the same bytes, so that what it has compiled is found again."""
        digest = hashlib.sha256(data).hexdigest()
        if digest in self._functions:
            self._functions.move_to_end(digest)
            return self._functions[digest]
        with self._arrays.counting() as loaded:
            function: Callable[..., Any] = self._arrays.loads(data)
        if not loaded.arrays:  # what holds arrays would keep them alive when they are freed
            self._functions[digest] = function
            if len(self._functions) > MAX_FUNCTIONS:
                self._functions.popitem(last=False)
        return function

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interruptible:
            self._interruptible = False
            raise KeyboardInterrupt
