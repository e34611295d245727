"""JAX's persistent compilation cache in a folder of this host, written by every rank: a restart compiles nothing.

JAX writes entries on process 0 alone, to spare shared file systems; a folder on each host's own disk needs no sparing,
and without this every other host would compile again after each restart.
"""

import inspect
import json
import os
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax._src import compilation_cache, compiler, distributed  # what decides who writes has no public name

KNOWN_PARAMETERS = ("cache_key", "compile_time_secs", "module_name", "backend", "executable")
CHECKED = "checked.json"  # beside the entries: which of them have been found whole

Checked = dict[str, list[int]]  # {name of the entry: [time of its last change in ns, size in bytes]}


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
    """Deletes entries that cannot be read, and returns how many; looks only at those that are new or have changed.

    JAX writes in place and never replaces an entry: one that a killed rank left half written would be compiled again
    at every start. An entry that is damaged later without a change of its size or time of change (by the disk itself)
    stays; JAX finds that by zlib's checksum when it reads it, and compiles.
    """
    damaged = 0
    known = _read_checked(folder)
    checked: Checked = {}
    for path in folder.glob("*-cache"):
        try:
            facts = path.stat()  # before the content is read: what is written meanwhile is looked at the next time
            checked[path.name] = [facts.st_mtime_ns, facts.st_size]
            if known.get(path.name) != checked[path.name]:
                zlib.decompress(path.read_bytes())
        except FileNotFoundError:  # another rank of this machine has deleted it
            checked.pop(path.name, None)
        except zlib.error:
            path.unlink(missing_ok=True)
            del checked[path.name]
            damaged += 1
    if checked != known:
        _write_checked(folder, checked)
    return damaged


def _read_checked(folder: Path) -> Checked:
    try:
        found: Checked = json.loads((folder / CHECKED).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there yet, or damaged itself
        return {}
    return found if isinstance(found, dict) else {}


def _write_checked(folder: Path, checked: Checked) -> None:
    """In one move: ranks of one machine may do so at the same time, and each has found what it writes."""
    new = folder / f"{CHECKED}.{os.getpid()}"
    try:
        new.write_text(json.dumps(checked), encoding="utf-8")
        new.replace(folder / CHECKED)
    except OSError:  # a full disk: all is looked at again the next time
        new.unlink(missing_ok=True)


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
