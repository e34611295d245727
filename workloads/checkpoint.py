"""Checkpoints of a workload's state: plain, synchronous and atomic, by Orbax.

A step is a folder `step_00000040` of the storage that all ranks reach. It is written under a temporary name and then
renamed (on object stores: marked complete by its last file), so that a step which can be seen is whole. The state may
be restored on any other layout of hosts and devices.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

if TYPE_CHECKING:  # Orbax takes 1 s to import, and a job may never save
    import orbax.checkpoint as ocp

    from workloads.context import Context

PyTree = Any

STATE, METADATA = "state", "metadata"


def save(context: Context, step: int, state: PyTree, metadata: dict[str, Any]) -> str:
    """Writes one step; every rank must call it, and it returns on all of them once the step is visible.

    A step that is there already is replaced (a run that was restored from an earlier step comes by it again); older
    steps stay. Check the replicas first: of what is replicated one copy is written, and nobody compares it.

    Args:
        context: its `storage` is the folder or URL (`gs://`, `s3://`) under which the step goes.
        step: steps (or draws) that the state has behind it.
        state: leaves are global `jax.Array`s of any sharding (typed PRNG keys too), or NumPy arrays and numbers that
            are equal on all ranks.
        metadata: what JSON can hold, equal on all ranks.

    Returns:
        The path of the step's folder.

    Raises:
        TypeError: JSON cannot hold the metadata.
        LaunchOrderError: the ranks have not launched the same until here.
    """
    import orbax.checkpoint as ocp

    json.dumps(metadata)  # raises before anything is written, not in one of Orbax's threads
    plain = jax.tree.map(_without_key_type, state)
    with context.phase("checkpoint"):
        context.agree(f"checkpoint {step}")
        start = time.perf_counter()
        target = epath.Path(_absolute(context.storage)) / _names().build_name(step)
        if context.is_first:
            target.parent.mkdir(parents=True, exist_ok=True)
        content = {STATE: ocp.args.StandardSave(plain), METADATA: ocp.args.JsonSave(metadata)}
        with _checkpointer() as checkpointer:
            checkpointer.save(target, args=ocp.args.Composite(**content), force=True)
        seconds = time.perf_counter() - start
    size = sum(leaf.nbytes if hasattr(leaf, "nbytes") else 8 for leaf in jax.tree.leaves(plain))
    context.emit({"type": "checkpoint", "step": step, "path": str(target), "bytes": int(size), "seconds": seconds})
    return str(target)


def latest_step(storage: str) -> int | None:
    """The newest whole step under `storage` (a folder or URL), or None."""
    steps = _steps(storage)
    return max(steps) if steps else None


def restore(storage: str, step: int | None, like: PyTree) -> tuple[int, PyTree, dict[str, Any]]:
    """Reads one step onto the present layout, which may differ from the one that wrote it; every rank must call it.

    Args:
        storage: folder or URL that `save` wrote under.
        step: which step; None for the newest.
        like: the tree that is wanted: a `jax.Array`, or a `jax.ShapeDtypeStruct` with a sharding, becomes an array of
            that shape, dtype and sharding; a NumPy array or number becomes one.

    Returns:
        The step, the state and the metadata.

    Raises:
        FileNotFoundError: no such step, naming those that are there.
        ValueError: the tree, a shape or a dtype is not the one that was saved.
    """
    import orbax.checkpoint as ocp

    steps = _steps(storage)
    if not steps or (step is not None and step not in steps):
        wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise FileNotFoundError(f"{wanted} under {storage} (steps there: {', '.join(map(str, steps)) or 'none'})")
    step = steps[-1] if step is None else step
    folder = epath.Path(_absolute(storage)) / _names().build_name(step)
    wanted_plain = jax.tree.map(_abstract, like)
    content = {STATE: ocp.args.StandardRestore(wanted_plain), METADATA: ocp.args.JsonRestore()}
    with _checkpointer() as checkpointer:
        _check_same_arrays(checkpointer.metadata(folder).item_metadata[STATE].tree, wanted_plain, folder)
        found = checkpointer.restore(folder, args=ocp.args.Composite(**content))
    return step, jax.tree.map(_with_key_type, like, found[STATE]), found[METADATA]


def _checkpointer() -> ocp.Checkpointer:
    """Orbax, synchronous; its barriers are the coordination service's, which name a rank that does not come."""
    import orbax.checkpoint as ocp

    ranks = set(range(jax.process_count())) if jax.process_count() > 1 else None
    processes = ocp.options.MultiprocessingOptions(primary_host=0, active_processes=ranks)
    handlers = {
        STATE: ocp.StandardCheckpointHandler(multiprocessing_options=processes),
        METADATA: ocp.JsonCheckpointHandler(multiprocessing_options=processes),
    }
    composite = ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(multiprocessing_options=processes), **handlers
    )
    return ocp.Checkpointer(composite, multiprocessing_options=processes)


def _names() -> ocp.path.step.NameFormat:
    import orbax.checkpoint as ocp

    return ocp.path.step.standard_name_format(step_prefix="step", step_format_fixed_length=8)


def _steps(storage: str) -> list[int]:
    root = epath.Path(_absolute(storage))
    return sorted(found.step for found in _names().find_all(root)) if root.exists() else []


def _absolute(storage: str) -> str:
    return storage if "://" in storage else str(epath.Path(storage).expanduser().resolve())


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _without_key_type(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _with_key_type(like: Any, found: Any) -> Any:
    """`found` with the generator of `like`; `key_impl` takes keys and tracers, but no abstract key."""
    if not _is_key(like):
        return found
    impls: list[Any] = []
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), like)
    return jax.random.wrap_key_data(found, impl=impls[0])


def _abstract(leaf: Any) -> Any:
    """What Orbax is asked for: shape, dtype and sharding of an array; a NumPy array or number as it is."""
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf
    plain = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    return jax.ShapeDtypeStruct(plain.shape, plain.dtype, sharding=leaf.sharding)


def _check_same_arrays(saved: PyTree, wanted: PyTree, folder: epath.Path) -> None:
    """Refuses what Orbax would cast in silence."""
    there = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(saved)}
    asked = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(wanted)}
    if there.keys() != asked.keys():
        odd = sorted(there.keys() ^ asked.keys())
        raise ValueError(f"{folder}: the saved tree is another one; in one and not in the other: {', '.join(odd[:5])}")
    for name, leaf in asked.items():
        was = (tuple(there[name].shape), np.dtype(there[name].dtype))
        now = (np.shape(leaf), np.dtype(leaf.dtype)) if hasattr(leaf, "dtype") else was
        if was != now:
            raise ValueError(
                f"{folder}: {name} was saved as {was[1]}{list(was[0])}, and {now[1]}{list(now[0])} is asked"
            )


def _name(path: tuple[Any, ...]) -> str:
    """`opt/0/mu/wte`, the same for a NamedTuple's field and the dict key that it was saved as."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
