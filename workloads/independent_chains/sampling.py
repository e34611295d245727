"""Runs the blocks of this process's devices: one thread a device, so that no device ever waits for another."""

import concurrent.futures
import dataclasses
import queue
import threading
from collections.abc import Callable, Sequence

import jax
import numpy as np

from workloads.independent_chains.history import History
from workloads.independent_chains.program import DeviceProgram
from workloads.independent_chains.sampler import ChainState


@dataclasses.dataclass(kw_only=True)
class BlockRun:
    """One block under way; the one thing here that changes.

    Attributes:
        block: its index.
        chains: (block_size,), int32; global chain indices.
        state: on the device.
        history: in host memory.
    """

    block: int
    chains: np.ndarray
    state: ChainState
    history: History


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceRun:
    """A device with its program and its blocks (maybe none)."""

    program: DeviceProgram
    blocks: tuple[BlockRun, ...]


def advance_devices(
    devices: Sequence[DeviceRun], start: int, stop: int, *, chunk: int, on_progress: Callable[[int], None]
) -> None:
    """Takes every block of every local device from transition `start` to `stop`.

    Args:
        devices: this process's.
        chunk: transitions in one dispatch.
        on_progress: called on this thread with the number of transitions that all local chains have made, whenever
            it has grown.

    Raises:
        Exception: the first of any device's thread; the others stop at their next chunk.
    """
    busy = [device for device in devices if device.blocks]
    if not busy:
        on_progress(stop)
        return
    progress: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
    stopping = threading.Event()

    def work(number: int) -> None:
        try:
            _advance_device(busy[number], start, stop, chunk, stopping, lambda done: progress.put((number, done)))
        finally:
            progress.put(None)

    with concurrent.futures.ThreadPoolExecutor(len(busy), thread_name_prefix="device") as pool:
        futures = [pool.submit(work, number) for number in range(len(busy))]
        for future in futures:
            future.add_done_callback(lambda future: stopping.set() if future.exception() else None)
        _follow(progress, dict.fromkeys(range(len(busy)), start), on_progress)
    for future in futures:
        future.result()


def _follow(
    progress: "queue.SimpleQueue[tuple[int, int] | None]", done: dict[int, int], on_progress: Callable[[int], None]
) -> None:
    """Tells of the slowest device's progress until all have ended."""
    told, running = min(done.values()), len(done)
    while running:
        message = progress.get()
        if message is None:
            running -= 1
            continue
        number, done[number] = message
        if min(done.values()) > told:
            told = min(done.values())
            on_progress(told)


def _advance_device(
    device: DeviceRun, start: int, stop: int, chunk: int, stopping: threading.Event, tell: Callable[[int], None]
) -> None:
    """The blocks take turns; while one computes, the trace of the one before is copied to host memory."""
    finish: Callable[[], None] | None = None
    for first in range(start, stop, chunk):
        last = min(first + chunk, stop)
        for run in device.blocks:
            if stopping.is_set():
                return
            run.state, trace = device.program.advance(run.state, run.chains, first, last)
            if finish:
                finish()
            finish = _recorder(run, first, last, trace, tell if run is device.blocks[-1] else None)
    if finish:
        finish()
    jax.block_until_ready([run.state for run in device.blocks])


def _recorder(run: BlockRun, first: int, last: int, trace, tell: Callable[[int], None] | None) -> Callable[[], None]:
    def finish() -> None:
        run.history.record(first, last, trace)
        if tell:
            tell(last)

    return finish
