"""Makes launches visible that do not go through the context: a user's own `jit`, without a change to their code.

JAX launches a program that it has seen before from C++, past all Python. For programs that span all processes, and for
no others, the way into C++ is closed here, so that every launch passes one Python function, which records it.

A name does not tell two programs apart: lambdas have one name, and so has a function that is compiled for two shapes.
So a launch is recorded by name and digest of the program's StableHLO, taken once, when it is compiled.

What it costs (the fastest launches of a tiny program, 2 hosts x 2 devices on two cores with other work on them): by
`jit` a launch takes 189 us instead of 34, of a program compiled ahead of time 126 instead of 42 (JAX 0.10.2; on 0.12
200 instead of 65, and 160 instead of 45).
"""

import functools
import hashlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from jax._src import pjit  # launches have no public hook; used in this file alone
from jax._src.interpreters import pxla

from workloads.agreement.launches import LaunchLog
from workloads.agreement.program import spans_all

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
    compile_hlo = getattr(getattr(pxla, "UnloadedMeshExecutable", None), "from_hlo", None)
    parameters = inspect.signature(compile_hlo).parameters if compile_hlo is not None else {}
    if tuple(parameters)[:2] != ("name", "hlo") or "device_list" not in parameters:
        return "jax._src.interpreters.pxla.UnloadedMeshExecutable.from_hlo is not the known one"
    slots = getattr(getattr(pxla, "ExecuteReplicated", None), "__slots__", ())
    if not {"name", "in_handler", "out_handler"}.issubset(slots):
        return "jax._src.interpreters.pxla.ExecuteReplicated is not the known one"
    return ""


_restore: list[Callable[[], None]] = []


def watch_launches(log: LaunchLog) -> bool:
    """Records every launch of a program that spans all processes, whoever launches it; call it before the first one.

    A program of some processes is not recorded: the others do not launch it, so that their logs would differ.

    Args:
        log: receives them under JAX's names with digests (`jit(train) #1f0e2d3c4b5a`); programs of the context are then
            recorded here as well, and no longer by themselves.

    Returns:
        Whether it is on; see `why_unsupported`.
    """
    if why_unsupported():
        return False
    unwatch_launches()
    entries: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # empty: is not recorded
    launch, fastpath, create, compile_hlo = (
        pxla.ExecuteReplicated.__call__,
        pjit._get_fastpath_data,
        pxla.MeshExecutable.create_cpp_call,
        pxla.UnloadedMeshExecutable.from_hlo,
    )

    def entry(program: Any) -> str:
        known = entries.get(program)
        if known is None:
            known = entries[program] = _entry_by_shapes(program)
        return known

    @functools.wraps(launch)
    def launch_recorded(self: Any, *args: Any) -> Any:
        recorded = entry(self)
        if recorded:
            log.record(recorded)
        return launch(self, *args)

    @functools.wraps(compile_hlo)
    def compile_digested(name: str, hlo: Any, *more: Any, **named: Any) -> Any:
        devices = tuple(named.get("device_list") or ())
        if not spans_all(devices):
            return compile_hlo(name, hlo, *more, **named)
        # Before it is compiled: nobody promises that this leaves the module as it is.
        recorded = _entry(name, f"{[device.id for device in devices]} {hlo}")
        executable = compile_hlo(name, hlo, *more, **named)
        entries[executable.unsafe_call] = recorded
        return executable

    def slow_path(executable: Any, *more: Any, **named: Any) -> Any:
        program = getattr(executable, "unsafe_call", None)
        if isinstance(program, pxla.ExecuteReplicated) and entry(program):
            return None
        return fastpath(executable, *more, **named)

    def create_slow(self: Any, params: Any) -> Any:
        if isinstance(self.unsafe_call, pxla.ExecuteReplicated) and entry(self.unsafe_call):
            return None
        return create(self, params)

    pxla.ExecuteReplicated.__call__ = launch_recorded
    pjit._get_fastpath_data = slow_path
    pxla.MeshExecutable.create_cpp_call = create_slow
    pxla.UnloadedMeshExecutable.from_hlo = staticmethod(compile_digested)
    log.watched = True

    def restore() -> None:
        pxla.ExecuteReplicated.__call__ = launch
        pjit._get_fastpath_data = fastpath
        pxla.MeshExecutable.create_cpp_call = create
        pxla.UnloadedMeshExecutable.from_hlo = staticmethod(compile_hlo)
        log.watched = False

    _restore.append(restore)
    return True


def _entry(name: str, text: str) -> str:
    return f"{name} #{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _entry_by_shapes(program: Any) -> str:
    """Of a program that was not seen being compiled, as one that was loaded from a file: what is known of it."""
    inputs, outputs = program.in_handler.in_shardings, program.out_handler.out_shardings
    if not spans_all(device for sharding in (*inputs, *outputs) for device in sharding.device_set):
        return ""
    return _entry(program.name, repr((inputs, outputs, program.out_handler.out_avals)))


def unwatch_launches() -> None:
    """Undoes `watch_launches`; programs that have been launched meanwhile stay on the slow path."""
    while _restore:
        _restore.pop()()
