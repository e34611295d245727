"""Makes launches visible that do not go through the context: a user's own `jit`, without a change to their code.

JAX launches a program that it has seen before from C++, past all Python. For programs that span processes, and for no
others, the way into C++ is closed here, so that every launch passes one Python function, which records it.

What it costs (the fastest launches of a tiny program, 2 hosts x 2 devices on two cores with other work on them): by
`jit` a launch takes 189 us instead of 34, of a program compiled ahead of time 126 instead of 42 (JAX 0.10.2; on 0.12
200 instead of 65, and 160 instead of 45).
"""

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax._src import pjit  # launches have no public hook; used in this file alone
from jax._src.interpreters import pxla

from workloads.agreement.launches import LaunchLog

FASTPATH_PARAMETERS = (
    "executable",
    "out_tree",
    "args_flat",
    "out_flat",
    "effects",
    "consts_for_constvars",
    "pgle_profiler",
    "const_args",
)


def why_unsupported() -> str:
    """Why launches of user code cannot be seen on this JAX; empty if they can."""
    fastpath = getattr(pjit, "_get_fastpath_data", None)
    if fastpath is None or tuple(inspect.signature(fastpath).parameters) != FASTPATH_PARAMETERS:
        return "jax._src.pjit._get_fastpath_data is not the known one"
    create = getattr(getattr(pxla, "MeshExecutable", None), "create_cpp_call", None)
    if create is None or tuple(inspect.signature(create).parameters) != ("self", "params"):
        return "jax._src.interpreters.pxla.MeshExecutable.create_cpp_call is not the known one"
    slots = getattr(getattr(pxla, "ExecuteReplicated", None), "__slots__", ())
    if not {"name", "in_handler", "out_handler"}.issubset(slots):
        return "jax._src.interpreters.pxla.ExecuteReplicated is not the known one"
    return ""


_restore: list[Callable[[], None]] = []


def watch_launches(log: LaunchLog) -> bool:
    """Records every launch of a program that spans all processes, whoever launches it; call it before the first one.

    A program of some processes is not recorded: the others do not launch it, so that their logs would differ.

    Args:
        log: receives them under JAX's names (`jit(train)`); programs of the context are then recorded here as well, and
            no longer by themselves.

    Returns:
        Whether it is on; see `why_unsupported`.
    """
    if why_unsupported():
        return False
    unwatch_launches()
    spans: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
    launch, fastpath, create = (
        pxla.ExecuteReplicated.__call__,
        pjit._get_fastpath_data,
        pxla.MeshExecutable.create_cpp_call,
    )

    def spans_all(program: Any) -> bool:
        if program not in spans:
            shardings = (*program.in_handler.in_shardings, *program.out_handler.out_shardings)
            processes = {device.process_index for sharding in shardings for device in sharding.device_set}
            spans[program] = len(processes) == jax.process_count() > 1
        return spans[program]

    @functools.wraps(launch)
    def launch_recorded(self: Any, *args: Any) -> Any:
        if spans_all(self):
            log.record(self.name)
        return launch(self, *args)

    def slow_path(executable: Any, *more: Any, **named: Any) -> Any:
        program = getattr(executable, "unsafe_call", None)
        if isinstance(program, pxla.ExecuteReplicated) and spans_all(program):
            return None
        return fastpath(executable, *more, **named)

    def create_slow(self: Any, params: Any) -> Any:
        if isinstance(self.unsafe_call, pxla.ExecuteReplicated) and spans_all(self.unsafe_call):
            return None
        return create(self, params)

    pxla.ExecuteReplicated.__call__ = launch_recorded
    pjit._get_fastpath_data = slow_path
    pxla.MeshExecutable.create_cpp_call = create_slow
    log.watched = True

    def restore() -> None:
        pxla.ExecuteReplicated.__call__ = launch
        pjit._get_fastpath_data = fastpath
        pxla.MeshExecutable.create_cpp_call = create
        log.watched = False

    _restore.append(restore)
    return True


def unwatch_launches() -> None:
    """Undoes `watch_launches`; programs that have been launched meanwhile stay on the slow path."""
    while _restore:
        _restore.pop()()
