"""Runs the blocks of this process's devices, keeping every device supplied with work ahead."""

import collections
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from workloads.independent_chains.history import History
from workloads.independent_chains.program import CompiledProgram, Trace
from workloads.independent_chains.sampler import ChainState

# Dispatches that wait for a device: how far the fastest may be ahead of the slowest. More than 32 JAX would not queue.
MAX_DISPATCHES_AHEAD = 16


@dataclasses.dataclass(kw_only=True)
class Round:
    """One block on each local device, under way; the one thing here that changes.

    Attributes:
        chains: (local devices * block_size,), int32; global indices.
        is_busy: (local devices,), bool; where there is a block.
        state: of all these chains, on the devices.
        history: of all these chains, in host memory.
    """

    chains: np.ndarray
    is_busy: np.ndarray
    state: ChainState
    history: History


def advance_rounds(
    program: CompiledProgram,
    rounds: Sequence[Round],
    start: int,
    stop: int,
    *,
    chunk: int,
    on_progress: Callable[[int], None],
) -> None:
    """Takes every local block from transition `start` to `stop`.

    Dispatches are queued on each device and draws copied to host memory in their order. A device begins its next chunk
    when it has finished the last, wherever the others are.

    Args:
        program: compiled for the local devices.
        rounds: which take turns, so that all chains advance together.
        start: transitions done.
        stop: transitions to reach.
        chunk: transitions in one dispatch.
        on_progress: called with the number of transitions that all local chains have made, after each chunk.
    """
    ahead: collections.deque[tuple[Round, int, int, Trace]] = collections.deque()

    def record_oldest() -> None:
        oldest, first, last, trace = ahead.popleft()
        oldest.history.record(first, last, trace)
        if oldest is rounds[-1]:
            on_progress(last)

    for first in range(start, stop, chunk):
        last = min(first + chunk, stop)
        for turn in rounds:
            stops = np.where(turn.is_busy, last, first)
            turn.state, trace = program.advance(turn.state, turn.chains, first, stops)
            ahead.append((turn, first, last, trace))
            if len(ahead) > MAX_DISPATCHES_AHEAD:
                record_oldest()
    while ahead:
        record_oldest()
