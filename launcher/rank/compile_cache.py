"""JAX's persistent compilation cache in a folder of this host, written by every rank: a restart compiles nothing.

JAX writes entries on process 0 alone, to spare shared file systems; a folder on each host's own disk needs no sparing,
and without this every other host would compile again after each restart.
"""

import inspect
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax._src import compilation_cache, compiler, distributed  # what decides who writes has no public name

KNOWN_PARAMETERS = ("cache_key", "compile_time_secs", "module_name", "backend", "executable")


def use_compile_cache(folder: str | None) -> str:
    """Keeps compiled programs in `folder`; call it before the first compilation.

    Args:
        folder: on this host's disk, private to it; None for no cache.

    Returns:
        Why ranks other than 0 do not write on this JAX; empty if they do.
    """
    if folder is None:
        return ""
    # Zlib has a checksum, which JAX checks when it reads; the frames that JAX writes by zstandard have none.
    compilation_cache.zstd = compilation_cache.zstandard = None
    drop_damaged(Path(folder))
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return _write_on_every_rank()


def drop_damaged(folder: Path) -> int:
    """Deletes entries that cannot be read, and returns how many; about 10 ms for 40 entries.

    JAX writes in place and never replaces an entry: one that a killed rank left half written would be compiled again
    at every start.
    """
    damaged = 0
    for path in folder.glob("*-cache"):
        try:
            zlib.decompress(path.read_bytes())
        except zlib.error:
            path.unlink(missing_ok=True)
            damaged += 1
    return damaged


def _write_on_every_rank() -> str:
    original: Callable[..., None] | None = getattr(compiler, "_cache_write", None)
    if original is None:
        return "this JAX has no jax._src.compiler._cache_write"
    found = tuple(inspect.signature(original).parameters)
    if found[: len(KNOWN_PARAMETERS)] != KNOWN_PARAMETERS or found[len(KNOWN_PARAMETERS) :] not in (
        (),
        ("host_callbacks",),
    ):
        return f"jax._src.compiler._cache_write has the parameters {', '.join(found)}"

    def write(
        cache_key: str, compile_time_secs: float, module_name: str, backend: Any, executable: Any, *callbacks: Any
    ) -> None:
        if distributed.global_state.process_id == 0:
            original(cache_key, compile_time_secs, module_name, backend, executable, *callbacks)
        elif not any(callbacks):  # they are functions of this process; later versions of JAX do not come here with any
            try:
                compilation_cache.put_executable_and_time(
                    cache_key, module_name, executable, backend, int(compile_time_secs)
                )
            except (OSError, jax.errors.JaxRuntimeError) as error:  # as JAX does: the job needs no cache
                warnings.warn(f"cannot keep the compiled program {module_name}: {error}", stacklevel=2)

    compiler._cache_write = write
    return ""
