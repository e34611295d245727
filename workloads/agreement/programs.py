"""The program barrier: no program that spans processes is compiled before every rank is about to compile the same.

XLA takes it on trust that all processes run one program: another constant, dtype or order of operations on one host
gives a wrong result with exit code 0. One hook, at the step that all compilations pass (user code's too), makes every
rank post the digest of its program and wait for the others' digests, through the coordination service.

Programs are matched by their number: what spans processes must be compiled in the same order on all ranks, which
compiling in several threads at once does not ensure. Programs of one process alone are not touched.
"""

import contextlib
import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

from jax._src import compiler  # the compile step has no public hook; used in this package alone

from workloads.agreement.majority import Vote, vote
from workloads.agreement.text_difference import first_difference
from workloads.errors import ProgramMismatchError
from workloads.exchange import Exchange

HOOK = "compile_or_get_cached"
PARAMETERS = (
    "backend",
    "computation",
    "devices",
    "compile_options",
    "host_callbacks",
    "executable_devices",
    "pgle_profiler",
)
OPTIONS = ("num_replicas", "num_partitions", "parameter_is_tupled_arguments", "env_option_overrides")
BUILD_OPTIONS = (
    "use_spmd_partitioning",
    "use_shardy_partitioner",
    "use_auto_spmd_partitioning",
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
    "exec_time_optimization_effort",
    "memory_fitting_effort",
    "optimization_level",
)


class ProgramBarrier:
    """Compares the programs of all ranks, one after the other.

    Args:
        exchange: messages between all ranks; its timeout bounds the wait for the slowest.
        host: this host's name.
    """

    def __init__(self, exchange: Exchange, host: str):
        self._exchange = exchange
        self._host = host
        self._lock = threading.Lock()
        self._by_group: dict[tuple[int, ...], Exchange] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """Programs that all their ranks have agreed upon."""
        return self._count

    def check(self, name: str, text: str, ranks: tuple[int, ...]) -> None:
        """Returns when all ranks of this program have posted the same text.

        Args:
            name: of the program.
            text: all that must be equal, as `describe` gives it.
            ranks: whose devices the program runs on, this rank among them.

        Raises:
            ProgramMismatchError: on every one of them.
            TimeoutError: naming the ranks that did not come.
        """
        with self._lock:  # two threads' programs would take each other's numbers
            compare_programs(self._exchange_of(ranks), self._host, name, text)
            self._count += 1

    def _exchange_of(self, ranks: tuple[int, ...]) -> Exchange:
        """A group of ranks counts its own programs: the others do not compile them."""
        if ranks not in self._by_group:
            self._by_group[ranks] = self._exchange.apart("-".join(map(str, ranks)), ranks=ranks)
        return self._by_group[ranks]


def compare_programs(exchange: Exchange, host: str, name: str, text: str | None) -> None:
    """Returns when all ranks of the exchange have posted, and those that have the program have posted the same text.

    Args:
        exchange: of the ranks that take part; every one of them must call it, in the same order.
        host: this host's name.
        name: of the program.
        text: all of it that must be equal; None: this rank has no such program, and only hears what the others have.

    Raises:
        ProgramMismatchError: on every one of them.
        TimeoutError: naming the ranks that did not come.
    """
    digest = None if text is None else hashlib.sha256(text.encode()).hexdigest()
    posts = exchange.all_gather("digest", [digest, name, host])
    held = {rank: post for rank, post in zip(exchange.ranks, posts, strict=True) if post[0] is not None}
    if len({digest for digest, _, _ in held.values()}) <= 1:
        return
    ballot = vote({rank: digest for rank, (digest, _, _) in held.items()})
    pair = (ballot.groups[0][0], ballot.groups[1][0])
    difference = first_difference(exchange, text or "", pair)
    names = {rank: name for rank, (_, name, _) in held.items()}
    hosts = {rank: host for rank, (_, _, host) in held.items()}
    raise ProgramMismatchError(_explain(ballot, names, hosts, difference.line, pair, difference.lines))


def _explain(
    ballot: Vote, names: dict[int, str], hosts: dict[int, str], line: int, pair: tuple[int, int], lines: tuple[str, str]
) -> str:
    one, other = pair
    name = names[one] if names[one] == names[other] else f"{names[one]} / {names[other]}"
    return (
        f"program {name}: {ballot}; nothing has run. First difference, line {line}:\n"
        f"  rank {one} on {hosts[one]}: {lines[0]}\n"
        f"  rank {other} on {hosts[other]}: {lines[1]}\n"
        "Every host must build the same program: same code, config and data; nothing in it may depend on the rank, the "
        "host, the time or the order of a set."
    )


_before_meeting = threading.local()


@contextlib.contextmanager
def before_meeting(tell: Callable[[], None]) -> Iterator[None]:
    """While it is entered, `tell` is called before all ranks meet for a program that this thread compiles.

    Who waits there is in no collective, and says so by it: otherwise it would look like one that is merely behind.
    """
    _before_meeting.tell = tell
    try:
        yield
    finally:
        del _before_meeting.tell


def describe(computation: Any, devices: Any, compile_options: Any) -> str:
    """All of a program that must be equal on its ranks, as text: name, devices, options, then StableHLO.

    Args:
        computation: MLIR module; its debug locations are left out.
        devices: NumPy array of the devices that it runs on, in the order of the partitions.
        compile_options: XLA's.
    """
    build = compile_options.executable_build_options
    options = {name: getattr(compile_options, name, None) for name in OPTIONS}
    options |= {name: getattr(build, name, None) for name in BUILD_OPTIONS}
    lines = [
        f"program {module_name(computation)}",
        f"devices {[int(device.id) for device in devices.flatten()]}",
        *(f"{name} {value!r}" for name, value in options.items()),
        str(computation),
    ]
    return "\n".join(lines)


def module_name(computation: Any) -> str:
    """`jit_train`."""
    return str(computation.operation.attributes["sym_name"]).strip('"')


def why_unsupported() -> str:
    """Why this JAX cannot have the barrier; empty if it can."""
    hook = getattr(compiler, HOOK, None)
    if hook is None:
        return f"this JAX has no jax._src.compiler.{HOOK}"
    found = tuple(inspect.signature(hook).parameters)
    if found != PARAMETERS:
        return f"jax._src.compiler.{HOOK} has the parameters {', '.join(found)}, known are {', '.join(PARAMETERS)}"
    return ""


_original: Callable[..., Any] | None = None


def install(exchange: Exchange, *, host: str, emit: Callable[[dict[str, Any]], None]) -> ProgramBarrier | None:
    """Puts the barrier before every compilation of this process; call it once, after the rendezvous.

    Args:
        exchange: messages between all ranks; a namespace of its own is taken.
        host: this host's name.
        emit: told once, as `barrier-off`, where this JAX is not known; the job then runs without.

    Returns:
        The barrier, or None if it is off.
    """
    global _original  # noqa: PLW0603 - what is patched is a module, of which there is one
    if _original is not None:
        raise RuntimeError("the program barrier is installed already; call uninstall() first")
    why = why_unsupported()
    if why:
        emit({"type": "barrier-off", "why": why})
        return None
    barrier = ProgramBarrier(exchange.apart("programs"), host)
    original = compiler.compile_or_get_cached

    def compile_after_barrier(
        backend: Any, computation: Any, devices: Any, compile_options: Any, *more: Any, **named: Any
    ) -> Any:
        ranks = tuple(sorted({int(device.process_index) for device in devices.flatten()}))
        # JAX compiles on every rank what any applies: one without a device of it runs nothing, and nobody waits for it.
        if len(ranks) > 1 and exchange.rank in ranks:
            if len(ranks) == exchange.num_ranks:
                getattr(_before_meeting, "tell", lambda: None)()
            barrier.check(module_name(computation), describe(computation, devices, compile_options), ranks)
        return original(backend, computation, devices, compile_options, *more, **named)

    compiler.compile_or_get_cached = compile_after_barrier
    _original = original
    return barrier


def uninstall() -> None:
    """Takes the barrier out again, if it is in."""
    global _original  # noqa: PLW0603 - as above
    if _original is not None:
        compiler.compile_or_get_cached = _original
        _original = None
