"""Runs on ranks: programs and launches that agree, and ranks that go astray."""

import functools
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from workloads.agreement import faults, programs
from workloads.agreement.environment import check_environment, compare_processors, describe_environment
from workloads.agreement.program import Program
from workloads.agreement.user_launches import unwatch_launches, watch_launches
from workloads.context import Context
from workloads.errors import EnvironmentMismatchError, LaunchOrderError, ProgramMismatchError


def _global(context: Context, length: int = 24, dtype: Any = np.float32) -> jax.Array:
    mesh = context.mesh({"data": jax.device_count()})
    value = np.arange(length, dtype=dtype)
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("data")), value.__getitem__)


def _mismatch(context: Context, function: Any, *args: Any) -> str:
    """What compiling says on this rank."""
    try:
        jax.jit(function).lower(*args).compile()
    except ProgramMismatchError as error:
        return str(error)
    return ""


def mismatches(context: Context) -> dict[str, Any]:
    """The last rank goes astray in every way, one after the other; what agrees must pass, before and after."""
    barrier = programs.install(context.exchange, host=context.host, emit=context.emit)
    assert barrier is not None
    astray = context.rank == context.num_ranks - 1
    x = _global(context)
    constant = 3.0 if astray else 2.0
    wide = _global(context, 48 if astray else 24)
    halved = _global(context, dtype=np.float16 if astray else np.float32)
    ops = jnp.sin if astray else jnp.cos
    names = ["b", "a"] if astray else ["a", "b"]

    def in_order(v: jax.Array) -> jax.Array:
        for name in names:
            v = v + 1 if name == "a" else v * 2
        return v.sum()

    def first(v: jax.Array) -> jax.Array:
        return v.sum()

    def second(v: jax.Array) -> jax.Array:
        return v.max()

    big = np.arange(100_000.0)
    big[-7] += astray
    result: dict[str, Any] = {"before": _mismatch(context, lambda v: v.sum(), x)}
    result["constant"] = _mismatch(context, lambda v: (v * constant).sum(), x)
    result["large constant"] = _mismatch(context, lambda v: (v.sum() * big).sum(), x)
    result["op"] = _mismatch(context, lambda v: ops(v).sum(), x)
    result["shape"] = _mismatch(context, lambda v: v.sum(), wide)
    result["dtype"] = _mismatch(context, lambda v: v.sum(), halved)
    result["order"] = _mismatch(context, in_order, x)
    result["rank"] = _mismatch(context, lambda v: v.sum() + jax.process_index(), x)
    result["name"] = _mismatch(context, second if astray else first, x)
    if astray:
        faults.change_next_program()
    result["injected"] = _mismatch(context, lambda v: (v * 5.0).sum(), x)
    result["after"] = _mismatch(context, lambda v: (v * 7.0).sum(), x)
    result["count"] = barrier.count
    programs.uninstall()
    return result


def local_and_threads(context: Context) -> dict[str, Any]:
    """Rank 0 alone compiles local programs, in threads too, before and while all compile a common one; with times."""
    barrier = programs.install(context.exchange, host=context.host, emit=context.emit)
    assert barrier is not None
    x = _global(context)

    def compile_local() -> None:
        for factor in range(5):
            jax.jit(lambda v, factor=factor: v * factor)(jnp.arange(3.0))

    threads = [threading.Thread(target=compile_local) for _ in range(3 if context.is_first else 0)]
    if context.is_first:
        compile_local()
    for thread in threads:
        thread.start()
    total = float(jax.jit(lambda v: v.sum())(x))
    for thread in threads:
        thread.join(60.0)
    part = None
    if context.num_ranks > 2:  # a program of some ranks: the others do not take part
        mesh = jax.sharding.Mesh([jax.devices()[0], jax.devices()[-1]], ("data",))
        if context.rank in (0, context.num_ranks - 1):
            array = jax.make_array_from_callback(
                (2,), NamedSharding(mesh, P("data")), np.arange(2, dtype=np.float32).__getitem__
            )
            part = float(jax.jit(lambda v: v.sum())(array))
    with_callback = jax.jit(lambda v: jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((), v.dtype), v.sum()))
    with_callback.lower(x).compile()  # its text must hold no address of this process
    seconds = []
    for module in [jax.jit(lambda v, k=k: jnp.tanh(v * k).sum()).lower(x).compiler_ir() for k in range(20)]:
        start = time.perf_counter()
        barrier.check("timed", str(module), tuple(range(context.num_ranks)))
        seconds.append(time.perf_counter() - start)
    programs.uninstall()
    return {"total": total, "part": part, "ms": 1000 * min(seconds), "count": barrier.count}


def bystander(context: Context) -> dict[str, Any]:
    """The last rank compiles what runs on the others' devices alone, after they have done so twice."""
    barrier = programs.install(context.exchange.apart("some", timeout_s=60.0), host=context.host, emit=context.emit)
    assert barrier is not None
    mesh = jax.sharding.Mesh(jax.devices()[:-1], ("data",))
    x = jax.ShapeDtypeStruct((4,), np.float32, sharding=NamedSharding(mesh, P("data")))

    def compile_two() -> None:
        for factor in (2.0, 3.0):
            jax.jit(lambda v, factor=factor: (factor * v).sum()).lower(x).compile()

    late = context.rank == context.num_ranks - 1
    if not late:
        compile_two()
    context.exchange.all_gather("two", None)
    if late:
        compile_two()
    total = float(jax.jit(lambda v: v.sum())(_global(context)))
    programs.uninstall()
    return {"total": total, "count": barrier.count}


def absent(context: Context) -> str:
    """Rank 1 never compiles the program."""
    message = ""
    x = _global(context)
    if context.rank == 0:
        exchange = context.exchange.apart("short", timeout_s=1.5)
        programs.install(exchange, host=context.host, emit=context.emit)
        try:
            jax.jit(lambda v: v.sum()).lower(x).compile()
        except TimeoutError as error:
            message = str(error)
        programs.uninstall()
    context.exchange.all_gather("done", None)
    return message


def launches(context: Context, *, fault: str, step: int = 5, steps: int = 12) -> dict[str, Any]:
    """Two programs, train and validate in turn; on the last rank something goes wrong at a step.

    Returns:
        The error, what the reports carried, and a snapshot.
    """
    x = _global(context)
    train, _ = context.compile("train", jax.jit(lambda v: v + v.mean(), donate_argnums=0), x)
    validate, _ = context.compile("validate", jax.jit(lambda v: v.max()), x)
    message = ""
    value = None
    try:
        for index in range(1, steps + 1):
            if index == step and context.rank == context.num_ranks - 1:
                if fault == "skip":
                    context.launches.skip_next("train")
                if fault == "swap":
                    context.launches.swap_next()
            if index == step and fault == "other":
                programs.install(context.exchange, host=context.host, emit=context.emit)
                context.launches.recompile_next(changed=context.rank == context.num_ranks - 1)
            x = train(x)
            if index % 3 == 0:
                validate(x)
            context.report(index, steps)
        value = context.gather(x).tolist()
    except (LaunchOrderError, ProgramMismatchError) as error:
        message = str(error)
        if fault == "skip" and context.rank == context.num_ranks - 1:
            jax.block_until_ready(train(x))  # the collective that the other ranks still wait in, so that they can end
    programs.uninstall()
    snapshot = context.launches.snapshot()
    return {"error": message, "value": value, "count": snapshot.count, "runs": snapshot.runs}


def _stage(context: Context) -> tuple[Program, jax.Array]:
    """A program on the first and the last device alone, and what it takes."""
    sharding = NamedSharding(jax.sharding.Mesh([jax.devices()[0], jax.devices()[-1]], ("data",)), P("data"))
    pair = jax.make_array_from_callback((2,), sharding, np.arange(2, dtype=np.float32).__getitem__)
    program, _ = context.compile("stage", jax.jit(lambda v: v / 2 + v.sum()), pair)
    return program, pair


def launches_of_some(context: Context) -> dict[str, Any]:
    """The first and the last of three ranks launch a program of their own, beside one of all ranks."""
    x = _global(context)
    total, _ = context.compile("total", jax.jit(lambda v: v.sum()), x)
    totals, halves = [float(total(x))], []
    if context.rank != 1:
        stage, pair = _stage(context)
        halves = [float(shard.data[0]) for shard in stage(pair).addressable_shards]
    totals.append(float(total(x)))
    context.agree("result")
    return {"totals": totals, "halves": halves, "runs": context.launches.snapshot().runs}


def compilations(context: Context) -> list[tuple[str, int]]:
    """Programs of all three ranks, one of them compiled in a thread, and one of two ranks; what is recorded of it."""
    programs.install(context.exchange, host=context.host, emit=context.emit)
    x = _global(context)
    context.compile("total", jax.jit(lambda v: v.sum()), x)
    thread = threading.Thread(target=context.compile, args=("beside", jax.jit(lambda v: v.max()), x))
    thread.start()
    thread.join()
    if context.rank != 1:
        _stage(context)
    context.compile("own", jax.jit(lambda v: v + 1), jnp.zeros(3))
    context.agree("result")
    programs.uninstall()
    return list(context.launches.snapshot().runs)


def same_name(context: Context, *, kind: str, barrier: bool, swap: bool) -> dict[str, Any]:
    """Two programs of one name, watched; compiled in one order on all ranks, launched in another on the last one.

    Args:
        kind: what else than the name differs: `lambda`, `static`, `shape`, or `context`, which names them itself.
        barrier: whether programs are compared.
        swap: whether the last rank swaps them.
    """
    if barrier:
        programs.install(context.exchange, host=context.host, emit=context.emit)
    assert watch_launches(context.launches)
    x = _global(context)
    inputs = [x, x]
    if kind == "lambda":
        functions = [jax.jit(f) for f in (lambda v: v.sum(), lambda v: v.max())]
    else:

        def step(v: jax.Array, largest: bool = False) -> jax.Array:
            return v.max() if largest else v.sum()

        jitted = jax.jit(step, static_argnames="largest")
        functions = [functools.partial(jitted, largest=largest) for largest in (False, True)]
        if kind == "shape":
            functions, inputs = [jitted, jitted], [x, _global(context, 48)]
        if kind == "context":
            functions = [
                context.compile("short", jitted, x)[0],
                context.compile("long", jitted, _global(context, 48))[0],
            ]
            inputs[1] = _global(context, 48)
    for function, value in zip(functions, inputs, strict=True):
        jax.block_until_ready(function(value))
    pairs = list(zip(functions, inputs, strict=True))
    astray = swap and context.rank == context.num_ranks - 1
    message = ""
    try:
        for function, value in reversed(pairs) if astray else pairs:
            jax.block_until_ready(function(value))
        context.agree("result")
    except LaunchOrderError as error:
        message = str(error)
    unwatch_launches()
    programs.uninstall()
    return {"error": message, "runs": context.launches.snapshot().runs}


def launch_cost(context: Context) -> dict[str, float]:
    """Microseconds that recording adds to a launch, and those of an agreement."""
    x = _global(context)
    program, _ = context.compile("noop", jax.jit(lambda v: v), x)
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(1000):
            context.launches.record(program.entry)
        rounds.append((time.perf_counter() - start) / 1000)
    meetings = []
    for _ in range(30):
        start = time.perf_counter()
        context.agree("meeting")
        meetings.append(time.perf_counter() - start)
    return {"record_us": 1e6 * min(rounds), "agree_ms": 1000 * min(meetings)}


def environments(context: Context, *, key: str) -> str:
    """The last rank differs in one thing."""
    environment = describe_environment({"code": "abc", "config": {"steps": 3, "rate": 0.5}, "seed": 0})
    if context.rank == context.num_ranks - 1 and key:
        assert key in environment or key.startswith("variable"), sorted(environment)
        environment[key] = "something else"
    try:
        check_environment(environment, exchange=context.exchange, host=context.host)
    except EnvironmentMismatchError as error:
        return str(error)
    return ""


def processors(context: Context, *, names: list[str]) -> str:
    """What is told of these processors, one a rank."""
    return compare_processors(names[context.rank], exchange=context.exchange, host=context.host)


def user_launches(context: Context) -> dict[str, Any]:
    """A user's own jit and AOT programs, 200 launches each, plain and watched; microseconds that a launch takes."""
    x = _global(context, 4 * 64)

    def microseconds(function: Any) -> float:
        """Of the fastest launch. One is in flight at a time: XLA:CPU hangs on many, watched or not (JAX 0.10.2)."""
        value = jax.block_until_ready(function(x))
        seconds = []
        for _ in range(200):
            start = time.perf_counter()
            value = function(value)
            seconds.append(time.perf_counter() - start)
            jax.block_until_ready(value)
        return 1e6 * min(seconds)

    def both() -> list[float]:
        jitted = jax.jit(lambda v: v * 0.5 + v.sum() / 1e6)
        ahead = jax.jit(lambda v: v + v.mean()).lower(x).compile()
        return [microseconds(jitted), microseconds(ahead)]

    plain = both()
    jax.clear_caches()
    on = watch_launches(context.launches)
    watched = both()
    seen = context.launches.snapshot().count
    local = jax.jit(lambda v: v + 1)
    for _ in range(5):
        local(jnp.arange(3))
    count = context.launches.snapshot().count
    unwatch_launches()
    return {"on": on, "plain": plain, "watched": watched, "seen": seen, "local": count - seen}
