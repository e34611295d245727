"""Reads a checkpoint onto the present layout, verifies every bit, and falls back to the newest step that is good."""

import dataclasses
import re
import textwrap
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from workloads.checkpoint.leaves import (
    add_up,
    describe,
    finish_fingerprints,
    join_blocks,
    named_leaves,
    start_fingerprints,
    with_key_type,
    without_key_type,
)
from workloads.checkpoint.saver import make_handler
from workloads.computed_with import computed_with, differences
from workloads.context import Context
from workloads.durable import as_path
from workloads.errors import StorageError
from workloads.integrity.verdict import vote
from workloads.storage.folders import MANIFEST, STATE, StepFolder
from workloads.storage.manifest import (
    DamageError,
    Manifest,
    changes,
    check_fingerprints,
    check_same_arrays,
)

PyTree = Any
Like = Callable[[int, dict[str, Any]], PyTree]

# What reading raises, in TensorStore and Orbax; with these words of TensorStore's it is the storage that fails, not the
# data that are damaged (of the kernel's errors all but ENOENT, ENOTDIR and EISDIR).
_READ_ERRORS = (OSError, ValueError, LookupError, NotImplementedError)
_UNREAD = re.compile(
    r"os_error_code='(?!(?:2|20|21)')|UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|RESOURCE_EXHAUSTED"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """A step as it was saved, every bit of it.

    Attributes:
        step: steps (or draws) that the state has behind it.
        path: the step's folder.
        state: as `like` asked.
        metadata: the workload's own.
        changes: parameters, and the seed, that were others then, as `rows=4096 (now 8192)`.
        computed_otherwise: versions and processors that were, as `jax 0.10.2 (now 0.12.0)`.
    """

    step: int
    path: str
    state: PyTree
    metadata: dict[str, Any]
    changes: list[str]
    computed_otherwise: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Problem:
    """Why a step is not used.

    Attributes:
        why: in words.
        is_damage: whether it is known not to be good; else it could not be read, and may be.
        step: which, once that counts.
    """

    why: str
    is_damage: bool
    step: int = 0


def resume(context: Context, like: Like, *, tell_changes: bool = True) -> Restored | None:
    """The newest good step for a run to go on from, or None: it starts at 0, and says why. See `restore`.

    Args:
        tell_changes: whether to warn where the step was saved with other parameters or another seed; not where `like`
            compares them, and refuses those that do not fit.
    """
    found, skipped = _newest_good(context, like)
    why = "" if found else "from step 0: no checkpoint"
    if skipped and not found:
        why = f"from step 0: no good checkpoint ({_in_words(skipped)})"
    if context.is_first:
        step, path = (found.step, found.path) if found else (0, "")
        context.emit({"type": "resumed", "step": step, "path": path, "why": why})
        context.log(why or f"resumed from step {step}: {path}")
        if skipped and not found:
            context.emit({"type": "warning", "text": f"starts {why}"})
        if found and found.changes and tell_changes:
            _warn(context, f"goes on from a checkpoint (step {step}) that was made with {', '.join(found.changes)}")
        if found and found.computed_otherwise:
            then = ", ".join(found.computed_otherwise)
            what = f"goes on from a checkpoint (step {step}) that was computed with {then}"
            _warn(context, f"{what}: results may differ in their last bits from here on")
    return found


def _warn(context: Context, text: str) -> None:
    context.emit({"type": "warning", "text": text})
    context.log(text)


def restore(context: Context, like: Like, step: int | None = None) -> Restored | None:
    """Reads a step onto the present layout, which may differ from the one that wrote it; every rank must call it.

    What is damaged, torn or gone is named (event `checkpoint-skipped`) and skipped, by all ranks together; what cannot
    be read too, but if no other step is good it may be, and nothing starts over.

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
        StorageError: no step is good, and some could not be read.
        ValueError: the tree, a shape or a dtype is not the one that was saved.
        TimeoutError: naming the ranks that did not come.
    """
    return _newest_good(context, like, step)[0]


def _newest_good(context: Context, like: Like, step: int | None = None) -> tuple[Restored | None, list[_Problem]]:
    """As `restore`; and what was skipped, the newest first."""
    skipped: list[_Problem] = []
    with context.phase("restore"):
        folders = _agree_on_folders(context)
        for folder in folders:
            if step is not None and folder.step != step:
                continue
            found, problem = _try_folder(context, folder, like)
            if problem is None:
                return found, skipped
            skipped.append(dataclasses.replace(problem, step=folder.step))
            if problem.is_damage:
                context.store.distrust(folder)
            if context.is_first:
                path = str(folder.path)
                context.emit({"type": "checkpoint-skipped", "step": folder.step, "path": path, "why": problem.why})
                context.log(f"checkpoint of step {folder.step} skipped: {problem.why} ({path})")
    if any(not problem.is_damage for problem in skipped):
        raise StorageError(
            f"no good checkpoint could be read under {context.storage} ({_in_words(skipped)}); nothing starts over as "
            "long as they may be good: see to the storage"
        )
    if step is not None:
        there = ", ".join(str(found) for found in sorted({folder.step for folder in folders})) or "none"
        raise FileNotFoundError(f"no good checkpoint of step {step} under {context.storage} (steps there: {there})")
    return None, skipped


def _in_words(skipped: list[_Problem]) -> str:
    return f"{len(skipped)} skipped: " + "; ".join(f"step {problem.step}: {problem.why}" for problem in skipped)


def _agree_on_folders(context: Context) -> list[StepFolder]:
    """What rank 0 finds, on all ranks; the newest first.

    Raises:
        StorageError: on all ranks; rank 0 cannot look.
    """
    message: list[Any] = []
    problem = ""
    if context.is_first:
        try:
            message = [[folder.step, folder.path.name, folder.committed] for folder in context.store.find()]
        except OSError as error:
            problem = f"rank 0 on host {context.host} cannot look for checkpoints ({error}): see to the storage"
    message, problem = context.exchange.all_gather("checkpoints", [message, problem])[0]
    if problem:
        raise StorageError(problem)
    root = as_path(context.storage)
    return [StepFolder(step=step, path=root / name, committed=committed) for step, name, committed in message]


def _try_folder(context: Context, folder: StepFolder, like: Like) -> tuple[Restored | None, _Problem | None]:
    """The step, or why it is not used; the same on all ranks."""
    if not folder.committed:
        return None, _Problem(why=f"half-written: it has no {MANIFEST}", is_damage=True)
    manifest, problem = _read(context, folder)
    problem = _agree_on_problem(context, "checkpoint files", problem)
    if problem or manifest is None:
        return None, problem
    tree = like(folder.step, manifest.metadata)
    wanted = jax.tree.map(without_key_type, tree)
    check_same_arrays(manifest, {name: describe(leaf) for name, leaf in named_leaves(wanted).items()}, folder.path)
    found, problem = _load(folder.path, wanted)
    problem = _agree_on_problem(context, "checkpoint data", problem)
    if problem:
        return None, problem
    why = _verify(context, manifest, found)
    if why:
        return None, _Problem(why=why, is_damage=True)
    state = jax.tree.map(with_key_type, tree, found)
    found_step = Restored(
        step=folder.step,
        path=str(folder.path),
        state=state,
        metadata=manifest.metadata,
        changes=changes(manifest, seed=context.seed, config=context.config),
        computed_otherwise=differences(manifest.computed_with, computed_with()),
    )
    return found_step, None


def _read(context: Context, folder: StepFolder) -> tuple[Manifest | None, _Problem | None]:
    try:
        manifest = context.store.bring(folder)
        if manifest.step != folder.step:
            raise DamageError(f"{MANIFEST} is that of step {manifest.step}")
    except DamageError as error:
        return None, _Problem(why=str(error), is_damage=True)
    except OSError as error:
        return None, _Problem(why=f"it could not be brought to this host ({error})", is_damage=False)
    return manifest, None


def _load(folder: epath.Path, wanted: PyTree) -> tuple[PyTree, _Problem | None]:
    import orbax.checkpoint as ocp

    try:
        return make_handler().restore(folder / STATE, args=ocp.args.StandardRestore(wanted)), None
    except _READ_ERRORS as error:
        met: BaseException = error
    except Exception as error:  # Orbax raises `Exception` itself from what TensorStore did, and from a MemoryError
        if not isinstance(error.__cause__, _READ_ERRORS):
            raise
        met = error.__cause__
    # TensorStore adds its whole specification, kilobytes of it.
    why = f"the data cannot be read ({textwrap.shorten(f'{type(met).__name__}: {met}', 400)})"
    return None, _Problem(why=why, is_damage=_is_damage(met))


def _is_damage(error: BaseException) -> bool:
    """Whether data are gone or not what they were, rather than out of reach at this moment."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return False
    return _UNREAD.search(str(error)) is None


def _verify(context: Context, manifest: Manifest, found: PyTree) -> str:
    """Why the bits are not those that were saved, or ''; every rank has verified what it holds."""
    parts = finish_fingerprints(start_fingerprints(named_leaves(found)))
    heard = context.exchange.all_gather("checkpoint fingerprints", [context.host, parts])
    blocks = join_blocks([host for host, _ in heard], [said for _, said in heard], manifest.leaves)
    fingerprints = {name: add_up(of_leaf) for name, of_leaf in blocks.items()}
    torn = [str(divergence) for of_leaf in blocks.values() for block in of_leaf if (divergence := vote(block))]
    try:
        check_fingerprints(manifest, fingerprints)
    except DamageError as error:
        return f"{error} (not read alike everywhere: {'; '.join(torn[:3])})" if torn else str(error)
    return ""


def _agree_on_problem(context: Context, topic: str, problem: _Problem | None) -> _Problem | None:
    """The problem of the first rank that has one; damage, if any has met that, for then the step is no good."""
    mine = [problem.is_damage, problem.why, context.host] if problem else None
    met = [(rank, *said) for rank, said in enumerate(context.exchange.all_gather(topic, mine)) if said]
    if not met:
        return None
    rank, is_damage, why, host = min(met, key=lambda one: not one[1])
    return _Problem(why=f"rank {rank} on host {host}: {why}" if rank or not is_damage else why, is_damage=is_damage)
