"""Ways to make this rank go astray, so that what should find it can be seen to. Never active unless asked for."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from jax._src import compiler  # as in `programs`
from jax._src.lib.mlir import ir

from workloads.agreement.launches import LaunchLog
from workloads.agreement.program import Program

PyTree = Any


class LaunchFault(Protocol):
    """Launches a program in place of `Program.__call__`."""

    def launch(self, program: Program, args: tuple[Any, ...], log: LaunchLog) -> PyTree: ...


class SkipLaunch:
    """Leaves out one launch of the program `name`; its caller gets zeros. Other programs are launched as ever."""

    def __init__(self, name: str):
        self.name = name

    def launch(self, program: Program, args: tuple[Any, ...], log: LaunchLog) -> PyTree:
        if program.name != self.name:
            return program.launch(args)
        log.fault = None
        return zero_results(program)


class SwapLaunches:
    """Launches another program, with zeros for arguments, before the first one; its own turn is then left out.

    The collectives of this rank so run in the order B, A where the other ranks run A, B.
    """

    def __init__(self) -> None:
        self._early: Program | None = None
        self._result: PyTree = None

    def launch(self, program: Program, args: tuple[Any, ...], log: LaunchLog) -> PyTree:
        if self._early is None:
            self._early = _other_program(program, log)
            self._result = self._early.launch(zero_arguments(self._early))
        elif program is self._early:
            log.fault = None
            return self._result
        return program.launch(args)


class RecompileProgram:
    """Compiles the next program anew, so that it passes the program barrier once more, then launches it.

    Args:
        changed: whether this rank's is made slightly different.
    """

    def __init__(self, *, changed: bool):
        self.changed = changed

    def launch(self, program: Program, args: tuple[Any, ...], log: LaunchLog) -> PyTree:
        log.fault = None
        jax.clear_caches()  # or JAX would return what it has compiled
        if self.changed:
            change_next_program()
        again = Program(program.name, program.function, program.abstract_args, log)
        program.compiled, program.entry = again.compiled, again.entry
        return program.launch(args)


def change_next_program() -> None:
    """Makes the next program that spans processes and has a constant slightly different on this rank.

    The program barrier, if it is in, must have been installed before.
    """
    original: Callable[..., Any] = compiler.compile_or_get_cached

    def compile_changed(backend: Any, computation: Any, devices: Any, *more: Any, **named: Any) -> Any:
        spans = len({device.process_index for device in devices.flatten()}) > 1
        if spans and _change_constant(computation) and compiler.compile_or_get_cached is compile_changed:
            compiler.compile_or_get_cached = original
        return original(backend, computation, devices, *more, **named)

    compiler.compile_or_get_cached = compile_changed


def zero_arguments(program: Program) -> tuple[Any, ...]:
    """Zeros in the shapes of a program's positional arguments, in host memory; keys for what are keys."""
    positional, _ = program.args_info
    return tuple(jax.tree.map(lambda leaf: _zeros(leaf, np.zeros), positional))


def zero_results(program: Program) -> PyTree:
    """Zeros in the shapes and shardings of a program's results."""

    def zeros(leaf: Any, sharding: Any) -> jax.Array:
        def on_devices(shape: tuple[int, ...], dtype: Any) -> jax.Array:
            return jax.make_array_from_callback(shape, sharding, lambda index: np.zeros(shape, dtype)[index])

        return _zeros(leaf, on_devices)

    return jax.tree.map(zeros, program.out_info, program.compiled.output_shardings)


def _other_program(program: Program, log: LaunchLog) -> Program:
    """The one that was compiled last, apart from `program`: an early one may never be launched again."""
    others = [other for other in log.programs.values() if other is not program]
    if not others:
        raise RuntimeError(f"cannot swap launches: {program.name!r} is the only program that spans all processes")
    return others[-1]


def _zeros(leaf: Any, make: Callable[[tuple[int, ...], Any], Any]) -> Any:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        like = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
        return jax.random.wrap_key_data(make(like.shape, like.dtype))
    return make(leaf.shape, leaf.dtype)


def _change_constant(computation: Any) -> bool:
    """Adds 1 to every element of the first numeric constant of an MLIR module, in place; whether there was one."""
    changed = False

    def visit(operation: Any) -> Any:
        nonlocal changed
        if operation.name != "stablehlo.constant":
            return ir.WalkResult.ADVANCE
        value = operation.attributes["value"]
        element = ir.RankedTensorType(value.type).element_type
        if not isinstance(element, ir.F32Type | ir.F64Type | ir.IntegerType) or str(element) == "i1":
            return ir.WalkResult.ADVANCE
        with computation.context:
            text = "1.0" if isinstance(element, ir.F32Type | ir.F64Type) else "1"
            one = ir.Attribute.parse(f"dense<{text}> : {value.type}")
            other = ir.Attribute.parse(str(one).replace("1", "3", 1))
            operation.attributes["value"] = other if value == one else one
        changed = True
        return ir.WalkResult.INTERRUPT

    computation.operation.walk(visit)
    return changed
