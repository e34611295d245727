"""A jitted function that is compiled when it is first called: a run that never comes to it compiles nothing."""

from typing import Any

from workloads.agreement.program import Program
from workloads.context import Context


class CompiledOnUse:
    """Called as `Context.compile` returns it; the first call compiles it, for the arguments that it then gets.

    A job that goes on after a fault so comes to its next step without what it does not need yet. All ranks must call
    it for the first time at the same place, as they must launch it at the same place.

    Attributes:
        compile_s: seconds that tracing, lowering and compiling took; 0 before the first call.

    Args:
        context: this rank.
        name: as `Context.compile` takes it.
        function: made by `jax.jit`.
    """

    def __init__(self, context: Context, name: str, function: Any):
        self.compile_s = 0.0
        self._context = context
        self._name = name
        self._function = function
        self._program: Program | None = None

    def __call__(self, *args: Any) -> Any:
        """Launches it; returns when it is under way.

        Args:
            args: arrays, of the same shapes, dtypes and shardings at every call.

        Raises:
            ProgramMismatchError: at the first call, on every rank: the ranks have built different programs.
        """
        if self._program is None:
            self._program, self.compile_s = self._context.compile(self._name, self._function, *args)
        return self._program(*args)
