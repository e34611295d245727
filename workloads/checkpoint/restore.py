"""Reads a checkpoint onto the present layout, verifies every bit, and falls back to the newest step that is good."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from workloads.checkpoint.leaves import (
    add_up,
    describe,
    finish_fingerprints,
    join_blocks,
    named_leaves,
    start_fingerprints,
)
from workloads.checkpoint.reading import Problem, agree_on_problem, load, look_for_damage
from workloads.checkpoint.stored import with_key_type, without_key_type
from workloads.computed_with import computed_with, differences
from workloads.context import Context
from workloads.durable import as_path
from workloads.errors import DamageError, StorageError
from workloads.integrity.verdict import vote
from workloads.storage.folders import MANIFEST, StepFolder
from workloads.storage.manifest import Manifest, changes, check_fingerprints, check_same_arrays

PyTree = Any
Like = Callable[[int, dict[str, Any]], PyTree]


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
        ValueError: the tree, a shape or a dtype is not the one that was saved, or a sharding does not fit its shape.
        TimeoutError: naming the ranks that did not come.
    """
    return _newest_good(context, like, step)[0]


def _newest_good(context: Context, like: Like, step: int | None = None) -> tuple[Restored | None, list[Problem]]:
    """As `restore`; and what was skipped, the newest first."""
    skipped: list[Problem] = []
    with context.phase("restore"):
        folders = _agree_on_folders(context)
        for folder in folders:
            if step is not None and folder.step != step:
                continue
            found, problem = _try_folder(context, folder, like)
            if problem is None:
                return found, skipped
            skipped.append(dataclasses.replace(problem, step=folder.step))
            if problem.kind == "damaged":
                context.store.distrust(folder)
            if context.is_first:
                path = str(folder.path)
                context.emit({"type": "checkpoint-skipped", "step": folder.step, "path": path, "why": problem.why})
                context.log(f"checkpoint of step {folder.step} skipped: {problem.why} ({path})")
    if any(problem.kind != "damaged" for problem in skipped):
        raise StorageError(
            f"no good checkpoint could be read under {context.storage} ({_in_words(skipped)}); nothing starts over as "
            "long as they may be good: see to the storage"
        )
    if step is not None:
        there = ", ".join(str(found) for found in sorted({folder.step for folder in folders})) or "none"
        raise FileNotFoundError(f"no good checkpoint of step {step} under {context.storage} (steps there: {there})")
    return None, skipped


def _in_words(skipped: list[Problem]) -> str:
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


def _try_folder(context: Context, folder: StepFolder, like: Like) -> tuple[Restored | None, Problem | None]:
    """The step, or why it is not used; the same on all ranks."""
    if not folder.committed:
        return None, Problem(why=f"half-written: it has no {MANIFEST}", kind="damaged")
    manifest, problem = _read(context, folder)
    problem = agree_on_problem(context, "checkpoint files", problem)
    if problem or manifest is None:
        return None, problem
    tree = like(folder.step, manifest.metadata)
    wanted = jax.tree.map(without_key_type, tree)
    leaves = named_leaves(wanted)
    check_same_arrays(manifest, {name: describe(leaf) for name, leaf in leaves.items()}, folder.path)
    _check_shardings(leaves, folder)
    found, met = load(folder.path, wanted)
    problem = agree_on_problem(context, "checkpoint data", met)
    if problem and problem.kind == "raised":
        raised = problem
        problem = agree_on_problem(context, "checkpoint arrays", look_for_damage(context, folder.path, manifest, met))
        if not problem:
            raise ValueError(
                f"{folder.path} is not damaged, every array of it can be read; but not as it is asked for, so that no "
                f"older step is taken, and nothing starts over: {raised.why}"
            )
    if problem:
        return None, problem
    why = _verify(context, folder, manifest, found)
    if why:
        return None, Problem(why=why, kind="damaged")
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


def _read(context: Context, folder: StepFolder) -> tuple[Manifest | None, Problem | None]:
    try:
        manifest = context.store.bring(folder)
        if manifest.step != folder.step:
            raise DamageError(f"{MANIFEST} is that of step {manifest.step}")
    except DamageError as error:
        return None, Problem(why=str(error), kind="damaged")
    except OSError as error:
        return None, Problem(why=f"it could not be brought to this host ({error})", kind="unread")
    return manifest, None


def _check_shardings(wanted: dict[str, Any], folder: StepFolder) -> None:
    for name, leaf in wanted.items():
        sharding = getattr(leaf, "sharding", None)
        try:
            _ = sharding and sharding.shard_shape(leaf.shape)
        except ValueError as error:
            raise ValueError(f"{folder.path}: {name} cannot be laid out as it is asked for: {error}") from error


def _verify(context: Context, folder: StepFolder, manifest: Manifest, found: PyTree) -> str:
    """Why the bits are not those that were saved, or ''; every rank has verified what it holds."""
    parts = finish_fingerprints(start_fingerprints(named_leaves(found)))
    heard = context.exchange.all_gather("checkpoint fingerprints", [context.host, parts])
    blocks = join_blocks([host for host, _ in heard], [said for _, said in heard], manifest.leaves)
    fingerprints = {name: add_up(of_leaf) for name, of_leaf in blocks.items()}
    torn = [str(divergence) for of_leaf in blocks.values() for block in of_leaf if (divergence := vote(block))]
    try:
        check_fingerprints(folder.path, manifest, fingerprints)
    except DamageError as error:
        return f"{error} (not read alike everywhere: {'; '.join(torn[:3])})" if torn else str(error)
    return ""
