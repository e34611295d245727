"""Tells the agent what this rank is doing, from a thread that works while the main thread is stuck.

It speaks while the main thread runs Python, waits in a collective or computes in C++; it falls silent when C++ code
holds Python's lock or the process is stopped, and that silence is told as such (`launcher.watchdog`).
"""

import collections
import dataclasses
import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from launcher.interactive import CALL
from launcher.place import MOVING, Place
from launcher.rank.background_cpu import BackgroundCpu
from launcher.rank.control import Message

SAY_PERIOD_S = 0.5
LOOK_PERIOD_S = 0.1
NUM_INTERVALS = 50
OWN_PHASES = ("run", CALL)  # in which a rank's own seconds are counted


class Progress:
    """Knows where this rank is, because every event of it passes through `emit`.

    Args:
        send: to the agent; may be called from several threads.

    Attributes:
        launches: gives what is known of launches, merged into each message: `launches` (their number) and `program`
            (the last one's name). It is called from any thread.
    """

    def __init__(self, send: Callable[[Message], None]):
        self.launches: Callable[[], Message] = dict
        self._send = send
        self._lock = threading.Lock()
        self._place = Place()
        self._launches = 0
        self._moved = self._came = time.monotonic()  # to where it is by its launches too, and by its events alone
        self._intervals: collections.deque[float] = collections.deque(maxlen=NUM_INTERVALS)
        self._own_s = 0.0

    def start(self) -> None:
        """Starts the thread; never before a fork, which it would not survive."""
        threading.Thread(target=self._run, name="progress", daemon=True).start()

    def emit(self, event: Message) -> None:
        """Sends an event, having noted where it says that this rank is."""
        now = time.monotonic()
        with self._lock:
            if event["type"] in MOVING:
                self._look_at_launches()  # were those before or after this event?
                self._place = self._place.after(event)
                if event["type"] == "report":
                    self._intervals.append(now - self._came)
                self._moved = self._came = now
        self._send(event)

    def message(self) -> Message:
        """Where this rank is now.

        Returns:
            The place; what `launches` gives; `since`, seconds without a move or a launch; `usual_s` and `longest_s`,
            the median and the longest of the last times that it took to the next report, unless there was none yet;
            and `own_s`, the sum of `own_seconds`.
        """
        with self._lock:
            launched = self._look_at_launches()
            message = {"type": "progress", **dataclasses.asdict(self._place), **launched}
            message["since"] = time.monotonic() - self._moved
            message["own_s"] = self._own_s
            if self._intervals:
                message["usual_s"] = statistics.median(self._intervals)
                message["longest_s"] = max(self._intervals)
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in message.items()}

    def _look_at_launches(self) -> Message:
        """What `launches` gives, having noted whether there are new ones."""
        launched = self.launches()
        if launched.get("launches", 0) > self._launches:
            self._launches, self._moved = launched["launches"], time.monotonic()
            self._place = self._place.after_launch()
        return launched

    def _run(self) -> None:
        background = BackgroundCpu()
        looked, cpu_s = time.monotonic(), time.process_time() - background.seconds()
        said = looked
        while True:
            time.sleep(LOOK_PERIOD_S)
            now, cpu_now_s = time.monotonic(), time.process_time() - background.seconds()
            if self._place.phase.partition(" ")[0] in OWN_PHASES:
                self._own_s += own_seconds(now - looked, cpu_now_s - cpu_s, waits=_main_thread_waits())
            looked, cpu_s = now, cpu_now_s
            if now - said >= SAY_PERIOD_S:
                said = now
                self._send(self.message())


def own_seconds(elapsed_s: float, cpu_s: float, *, waits: bool) -> float:
    """How much of a moment this rank used for itself, rather than waiting for a device or another rank.

    In a step that ends in a collective all ranks take equally long; what tells the slow one apart is that it does not
    wait. The host's own Python code counts, sleeping or not; inside JAX only the processor time of the threads that
    compute counts (what an accelerator computes is invisible here), not that of a checkpoint that is written meanwhile,
    of which rank 0 has the most; and a moment after which this thread came back late counts: the process was stopped,
    starved, or held Python's lock.

    Args:
        elapsed_s: length of the moment.
        cpu_s: processor time of the process in it, without `BackgroundCpu`'s.
        waits: whether the main thread was inside JAX, or waited for a message of another rank.
    """
    if elapsed_s > 2 * LOOK_PERIOD_S or not waits:
        return elapsed_s
    return min(elapsed_s, max(0.0, cpu_s))


def _main_thread_waits() -> bool:
    """Whether the innermost Python frame of the main thread is JAX's, or that of messages between ranks."""
    frame = _main_frame()
    jax, exchange = (getattr(sys.modules.get(name), "__file__", None) for name in ("jax", "workloads.exchange"))
    if frame is None or jax is None:
        return False
    file = frame.f_code.co_filename
    return file == exchange or file.startswith(str(Path(jax).parent))


def _main_frame() -> FrameType | None:
    """Where the main thread is, looked up while nothing is collected.

    Before Python 3.12 `sys._current_frames` allocates with the lock on the list of threads held, which may begin a
    collection; JAX has a callback in those, in which another thread may take over. If that one waits for the same lock,
    as each thread that begins or ends does, with Python's own in its hands, no Python code ever runs again (CPython's
    gh-106883). It was seen with the threads of a checkpoint. Since 3.12 collections begin between instructions.
    """
    collects = sys.version_info < (3, 12) and gc.isenabled()
    if collects:
        gc.disable()
    try:
        return sys._current_frames().get(threading.main_thread().ident or 0)
    finally:
        if collects:
            gc.enable()
