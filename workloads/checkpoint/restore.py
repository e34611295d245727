"""Reads a checkpoint onto the present layout, verifies every bit, and falls back to the newest step that is good."""

import dataclasses
import textwrap
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from workloads.checkpoint.leaves import (
    combine,
    describe,
    finish_fingerprints,
    named_leaves,
    start_fingerprints,
    with_key_type,
    without_key_type,
)
from workloads.checkpoint.saver import make_handler
from workloads.context import Context
from workloads.durable import as_path
from workloads.storage.folders import MANIFEST, STATE, StepFolder
from workloads.storage.manifest import (
    DamageError,
    Manifest,
    check_fingerprints,
    check_same_arrays,
)

PyTree = Any
Like = Callable[[int, dict[str, Any]], PyTree]

BRING_TIMEOUT_S = 1200.0  # a host may have to fetch all of a step before it can read

# What reading damaged data raises, in TensorStore and Orbax.
_READ_ERRORS = (OSError, ValueError, LookupError, NotImplementedError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """A step as it was saved, every bit of it.

    Attributes:
        step: steps (or draws) that the state has behind it.
        path: the step's folder.
        state: as `like` asked.
        metadata: the workload's own.
    """

    step: int
    path: str
    state: PyTree
    metadata: dict[str, Any]


def resume(context: Context, like: Like) -> Restored | None:
    """The newest good step for a run to go on from, or None: it starts at 0, and says so. See `restore`."""
    found = restore(context, like)
    why = "" if found else "from step 0: no checkpoint"
    if context.is_first:
        step, path = (found.step, found.path) if found else (0, "")
        context.emit({"type": "resumed", "step": step, "path": path, "why": why})
        context.log(why or f"resumed from step {step}: {path}")
    return found


def restore(context: Context, like: Like, step: int | None = None) -> Restored | None:
    """Reads a step onto the present layout, which may differ from the one that wrote it; every rank must call it.

    What is damaged, torn or gone is named (event `checkpoint-skipped`) and skipped, by all ranks together.

    Args:
        context: its `storage` is the folder or URL that was saved under.
        like: called with the step and its metadata; the tree that is wanted: a `jax.Array`, or a
            `jax.ShapeDtypeStruct` with a sharding, becomes an array of that shape, dtype and sharding; a NumPy array
            or number becomes one.
        step: which step; None for the newest that is good.

    Returns:
        The step, or None if there is no good one.

    Raises:
        FileNotFoundError: `step` is not there or not good, naming those that are there.
        ValueError: the tree, a shape or a dtype is not the one that was saved.
        TimeoutError: naming the ranks that did not come.
    """
    with context.phase("restore"):
        folders = _agree_on_folders(context)
        for folder in folders:
            if step is not None and folder.step != step:
                continue
            found, why = _try_folder(context, folder, like)
            if found:
                return found
            if context.is_first:
                path = str(folder.path)
                context.emit({"type": "checkpoint-skipped", "step": folder.step, "path": path, "why": why})
                context.log(f"checkpoint of step {folder.step} skipped: {why} ({path})")
    if step is not None:
        there = ", ".join(str(found) for found in sorted({folder.step for folder in folders})) or "none"
        raise FileNotFoundError(f"no good checkpoint of step {step} under {context.storage} (steps there: {there})")
    return None


def _agree_on_folders(context: Context) -> list[StepFolder]:
    """What rank 0 finds, on all ranks; the newest first."""
    found = context.store.find() if context.is_first else []
    message = [[folder.step, folder.path.name, folder.committed] for folder in found]
    root = as_path(context.storage)
    return [
        StepFolder(step=step, path=root / name, committed=committed)
        for step, name, committed in context.exchange.all_gather("checkpoints", message)[0]
    ]


def _try_folder(context: Context, folder: StepFolder, like: Like) -> tuple[Restored | None, str]:
    """The step, or why it is not good; the same on all ranks."""
    if not folder.committed:
        return None, f"half-written: it has no {MANIFEST}"
    manifest, problem = _read(context, folder)
    why = _first_problem(context, "checkpoint files", problem, timeout_s=BRING_TIMEOUT_S)
    if why or manifest is None:
        return None, why
    tree = like(folder.step, manifest.metadata)
    wanted = jax.tree.map(without_key_type, tree)
    check_same_arrays(manifest, {name: describe(leaf) for name, leaf in named_leaves(wanted).items()}, folder.path)
    found, problem = _load(folder.path, wanted)
    why = _first_problem(context, "checkpoint data", problem)
    if why:
        return None, why
    why = _verify(context, manifest, found)
    if why:
        return None, why
    state = jax.tree.map(with_key_type, tree, found)
    return Restored(step=folder.step, path=str(folder.path), state=state, metadata=manifest.metadata), ""


def _read(context: Context, folder: StepFolder) -> tuple[Manifest | None, str]:
    try:
        manifest = context.store.bring(folder)
        if manifest.step != folder.step:
            raise DamageError(f"{MANIFEST} is that of step {manifest.step}")
    except DamageError as error:
        return None, str(error)
    except OSError as error:
        return None, f"it could not be brought to this host ({error})"
    return manifest, ""


def _load(folder: epath.Path, wanted: PyTree) -> tuple[PyTree, str]:
    import orbax.checkpoint as ocp

    try:
        return make_handler().restore(folder / STATE, args=ocp.args.StandardRestore(wanted)), ""
    except _READ_ERRORS as error:
        damage: BaseException = error
    except Exception as error:  # Orbax raises `Exception` itself from what TensorStore did, and from a MemoryError
        if not isinstance(error.__cause__, _READ_ERRORS):
            raise
        damage = error.__cause__
    # TensorStore adds its whole specification, kilobytes of it.
    return None, f"the data cannot be read ({textwrap.shorten(f'{type(damage).__name__}: {damage}', 400)})"


def _verify(context: Context, manifest: Manifest, found: PyTree) -> str:
    """Why the bits are not those that were saved, or ''; every rank has verified what it holds."""
    parts = finish_fingerprints(start_fingerprints(named_leaves(found)))
    heard = context.exchange.all_gather("checkpoint fingerprints", parts)
    fingerprints, torn = combine(heard)
    try:
        check_fingerprints(manifest, fingerprints)
    except DamageError as error:
        return f"{error} (not read alike everywhere: {', '.join(torn[:3])})" if torn else str(error)
    return ""


def _first_problem(context: Context, topic: str, problem: str, timeout_s: float | None = None) -> str:
    problems = context.exchange.all_gather(topic, problem, timeout_s)
    return next((f"rank {rank} on {topic}: {said}" if rank else said for rank, said in enumerate(problems) if said), "")
