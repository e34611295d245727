"""Runs this process's blocks, keeping every device supplied with work ahead."""

import collections
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from workloads.independent_chains.history import History
from workloads.independent_chains.program import DeviceProgram, Trace
from workloads.independent_chains.sampler import ChainState

# Chunks queued for a block: so far may the fastest block be ahead of the slowest. JAX queues at most 32 on a device.
MAX_CHUNKS_AHEAD = 16


@dataclasses.dataclass(kw_only=True)
class BlockRun:
    """One block under way; the one thing here that changes.

    Attributes:
        block: its index.
        chains: (block_size,), int32; global indices.
        program: of its device.
        state: on the device.
        history: in host memory.
    """

    block: int
    chains: np.ndarray
    program: DeviceProgram
    state: ChainState
    history: History


def advance_blocks(
    runs: Sequence[BlockRun],
    start: int,
    stop: int,
    *,
    chunk: int,
    on_progress: Callable[[int], None],
    ends_at: Callable[[int], bool] = lambda step: False,
) -> int:
    """Takes every block from transition `start` to `stop`, or to where it is to end before.

    Dispatches are queued on the devices, and draws are copied to host memory in the same order. A device begins its
    next chunk when it has finished the last, wherever the others are.

    Args:
        runs: this process's blocks (maybe none), which take turns.
        start: transitions done.
        stop: transitions to reach.
        chunk: transitions in one dispatch.
        on_progress: called with the number of transitions that all local chains have made, after each chunk.
        ends_at: asked between two chunks, with the number of transitions up to there, whether to go no further.

    Returns:
        Transitions done.
    """
    ahead: collections.deque[tuple[BlockRun, int, int, Trace]] = collections.deque()

    def record_oldest() -> None:
        run, first, last, trace = ahead.popleft()
        run.history.record(first, last, trace)
        if run is runs[-1]:
            on_progress(last)

    reached = stop
    for first in range(start, stop, chunk):
        if first > start and ends_at(first):
            reached = first
            break
        last = min(first + chunk, stop)
        for run in runs:
            run.state, trace = run.program.advance(run.state, run.chains, first, last)
            ahead.append((run, first, last, trace))
            if len(ahead) > MAX_CHUNKS_AHEAD * len(runs):
                record_oldest()
    while ahead:
        record_oldest()
    if not runs:
        on_progress(reached)
    return reached
