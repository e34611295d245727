"""Lines of `jax.debug.print` that say which rank they come from."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

_lock = threading.Lock()
_tracing: dict[int, int] = {}  # by thread: how many functions it is tracing, one inside the other
_original: Callable[..., Any] | None = None


@contextlib.contextmanager
def rank_in_lines() -> Iterator[None]:
    """While this thread traces a function, its `jax.debug.print` lines begin with `[rank N]`; other threads' do not.

    The text of a line is no part of the compiled program, so that all ranks still compile the same.
    """
    global _original
    thread = threading.get_ident()
    with _lock:
        if not _tracing:
            _original, jax.debug.print = jax.debug.print, _print
        _tracing[thread] = _tracing.get(thread, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _tracing[thread] -= 1
            if not _tracing[thread]:
                del _tracing[thread]
            if not _tracing:
                jax.debug.print = _original


def _print(*args: Any, **kwargs: Any) -> Any:
    original = _original
    assert original is not None
    if threading.get_ident() not in _tracing:
        return original(*args, **kwargs)
    prefix = f"[rank {jax.process_index()}] "
    if args:
        return original(prefix + args[0], *args[1:], **kwargs)
    if "fmt" in kwargs:
        return original(**kwargs | {"fmt": prefix + kwargs["fmt"]})
    later = original(**kwargs)  # `jax.debug.print(ordered=True)("x is {x}", x=x)`
    return lambda fmt, *values, **named: later(prefix + fmt, *values, **named)
