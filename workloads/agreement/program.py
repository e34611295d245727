"""A compiled program whose launches are recorded."""

import contextlib
import hashlib
import threading
from collections.abc import Iterable
from typing import Any

import jax

from workloads.agreement.launches import LaunchLog
from workloads.agreement.programs import before_meeting


class Program:
    """What `Context.compile` returns: called as the compiled program is.

    Attributes:
        name: in the log of launches.
        function, abstract_args: what it was compiled from.
        compiled: JAX's; `compiled.memory_analysis()` and the like.
        args_info, out_info: pytrees of shapes and dtypes of arguments (positional, keyword) and results.
        spans_all: whether it runs on devices of all processes; launches of others are not recorded, as not every rank
            makes them.

    Args:
        name: as above.
        function: made by `jax.jit`.
        args: arrays, or `jax.ShapeDtypeStruct`s with shardings.
        log: where launches are recorded.
    """

    def __init__(self, name: str, function: Any, args: tuple[Any, ...], log: LaunchLog):
        lowered = function.lower(*args)
        self.name = name
        self.function = function
        self.abstract_args = jax.tree.map(_abstract, args)  # no array is kept alive
        with _recorded(name, log):
            self.compiled = lowered.compile()
        self.args_info, self.out_info = lowered.args_info, lowered.out_info
        shardings = jax.tree.leaves((self.compiled.input_shardings, self.compiled.output_shardings))
        self.spans_all = spans_all(device for sharding in shardings for device in sharding.device_set)
        self._log = log
        self.entry = name
        if self.spans_all:
            # A name alone does not tell the programs of two compilations apart.
            self.entry = f"{name} #{hashlib.sha256(lowered.as_text().encode()).hexdigest()[:12]}"
            log.programs[name] = self

    def __call__(self, *args: Any) -> Any:
        """Launches it; returns when it is under way."""
        if not self.spans_all:
            return self.compiled(*args)
        log = self._log
        if log.before_launch is not None:
            log.before_launch(self.name)
        if log.fault is not None:
            return log.fault.launch(self, args, log)
        return self.launch(args)

    def launch(self, args: tuple[Any, ...]) -> Any:
        """Records and launches it, faults or no faults."""
        if not self._log.watched:
            self._log.record(self.entry)
        return self.compiled(*args)


def _recorded(name: str, log: LaunchLog) -> contextlib.AbstractContextManager[None]:
    """Records the meeting of all ranks before a compilation as what it is among the launches, one at the same place.

    A rank that has left out a launch may come to it while the others wait in that launch: it would wait for them, they
    for it. In a thread beside the one that launches, a meeting has no place among the launches.
    """
    if threading.current_thread() is not threading.main_thread():
        return contextlib.nullcontext()
    return before_meeting(lambda: log.record(f"compile {name}"))


def _abstract(leaf: Any) -> Any:
    """What a leaf is lowered as; NumPy arrays and numbers stay what they are."""
    if not isinstance(leaf, jax.Array):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding if leaf.committed else None)


def spans_all(devices: Iterable[jax.Device]) -> bool:
    """Whether a program on these devices runs on all processes, of which there are several."""
    return len({device.process_index for device in devices}) == jax.process_count() > 1
