"""Runs on ranks: saves a state, or restores it, on whatever layout the test asks for."""

import dataclasses
import os
import resource
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from workloads import checkpoint
from workloads.checkpoint import reading
from workloads.context import Context, Event
from workloads.durable import as_path
from workloads.errors import FencedError, ReplicaDivergenceError, StorageError
from workloads.fence import write_fence
from workloads.result import digest_arrays
from workloads.storage import stores
from workloads.storage.folders import find_folders, remove, step_of
from workloads.storage.stores import Delivered, SharedStore, Writer


class Moments(NamedTuple):
    """A NamedTuple, as optax's states are."""

    mu: Any
    nu: Any


SPECS = {
    "rows": PartitionSpec("a"),
    "both": PartitionSpec("b", "a"),
    "copies": PartitionSpec(),
    "moments": Moments(PartitionSpec("a", "b"), PartitionSpec()),
    "key": PartitionSpec(),
    "keys": PartitionSpec("a"),
    "half": PartitionSpec("b"),
    "large": PartitionSpec("a"),
    "empty": PartitionSpec("a", "b"),
}


def _values() -> dict[str, Any]:
    base = jnp.arange(64, dtype=jnp.float32).reshape(8, 8) / 7
    return {
        "rows": base,
        "both": base + 1,
        "copies": base[0],
        "moments": Moments(base * 2, jnp.int32(11)),
        "key": jax.random.key(5),
        "keys": jax.random.split(jax.random.key(6), 8),
        "half": base.astype(jnp.bfloat16),
        "large": jax.random.normal(jax.random.key(7), (64, 32)),  # small ones lie in the index of the arrays
        "empty": jnp.zeros((8, 0)),
    }


def make(context: Context, axes: dict[str, int]) -> dict[str, Any]:
    """A state of sharded and replicated arrays, keys, NumPy arrays and numbers."""
    mesh = context.mesh(axes)
    is_spec = lambda leaf: isinstance(leaf, PartitionSpec)  # noqa: E731
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), SPECS, is_leaf=is_spec)
    arrays = jax.jit(_values, out_shardings=shardings)()
    return {**arrays, "host": np.arange(3.0), "swapped": np.arange(3.0).astype(">f8"), "count": 7, "seen": np.int64(8)}


def digest(context: Context, state: Any) -> str:
    """Of every leaf's bits, gathered."""
    leaves = jax.tree_util.tree_leaves_with_path(context.gather(state))
    return digest_arrays({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves})


def save(context: Context, axes: dict[str, int], steps: list[int]) -> dict[str, Any]:
    """One save after the other; the arrays are donated and the NumPy array is changed while the save is under way."""
    saver = checkpoint.Saver(context)
    forget = jax.jit(lambda arrays: jax.tree.map(lambda leaf: leaf * 0, arrays), donate_argnums=0)
    for step in steps:
        state = make(context, axes)
        expected = digest(context, state)
        saver.save(step, state, {"step": step, "words": ["a", "é"]})
        forget({name: state[name] for name in ("rows", "both", "copies", "moments", "half")})
        state["host"] += 1
    newest = saver.wait()
    return {"digest": expected, "newest": newest, "latest": checkpoint.latest_step(context.storage)}


def restore(context: Context, axes: dict[str, int], step: int | None) -> dict[str, Any] | None:
    """Restores like the shapes and shardings alone, and draws from the restored key; None: nothing good."""
    state = make(context, axes)

    def abstract(leaf: Any) -> Any:
        is_array = isinstance(leaf, jax.Array)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) if is_array else leaf

    restored = checkpoint.restore(context, lambda *_: jax.tree.map(abstract, state), step)
    if restored is None:
        return None
    found = restored.state
    shardings = {name: found[name].sharding == state[name].sharding for name in ("rows", "both", "keys")}
    draw = jax.jit(jax.random.normal)
    return {
        "step": restored.step,
        "digest": digest(context, found),
        "metadata": restored.metadata,
        "shardings": shardings,
        "same_draw": float(draw(found["key"])) == float(draw(state["key"])),
        "types": [type(found[name]).__name__ for name in ("host", "moments", "count", "seen")],
        "order": found["swapped"].dtype.str,
    }


class CannotRead:
    """Stands for Orbax's handler where reading raises what is no damage; it wraps TensorStore's errors like this."""

    def __init__(self, met: BaseException):
        self.met = met

    def restore(self, *_: Any, **__: Any) -> Any:
        raise Exception("Encountered error while reading array index") from self.met


def resume_as_it_cannot_be(context: Context) -> list[str]:
    """Saves a step; what every rank says of a resume in rows that no mesh of 3 has, and where the last cannot read."""
    sharding = NamedSharding(context.mesh({"a": context.num_ranks}), PartitionSpec())
    whole = {"w": jax.jit(lambda: jnp.ones((4, 3)), out_shardings=sharding)()}
    checkpoint.save(context, 5, whole, {})
    in_rows = jax.ShapeDtypeStruct((4, 3), jnp.float32, sharding=sharding.update(spec=PartitionSpec("a")))
    said = [_resume(context, {"w": in_rows})]
    if context.rank == context.num_ranks - 1:
        vars(reading)["make_handler"] = lambda: CannotRead(ValueError("what nobody has thought of"))
    return [*said, _resume(context, whole)]


def _resume(context: Context, like: Any) -> str:
    try:
        checkpoint.resume(context, lambda *_: like)
    except ValueError as error:
        return str(error)
    return "resumed"


def restore_without(context: Context, lost_by: int) -> str:
    """What every rank says of a resume where one of them has an empty folder in the storage's place."""
    context = dataclasses.replace(context, attempt=2)
    if context.rank == lost_by:
        empty = context.output / "storage"
        empty.mkdir()
        context = dataclasses.replace(context, storage=str(empty))
    try:
        checkpoint.resume(context, lambda *_: make(context, {"a": 2, "b": 2}))
    except StorageError as error:
        return str(error)
    return "resumed"


def full_disk(context: Context, full_on: list[int]) -> list[int | None]:
    """Saves 10, 20 and 30; at 20 some ranks can write no file of more than 20 kB (a real write error).

    Returns:
        The newest step after each save.
    """
    saver = checkpoint.Saver(context)
    sharding = NamedSharding(context.mesh({"a": 2, "b": 2}), PartitionSpec("a", "b"))
    noise = jax.jit(lambda: jax.random.normal(jax.random.key(0), (256, 256)), out_shardings=sharding)()
    latest = []
    for step in (10, 20, 30):
        if step == 20 and context.rank in full_on:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        saver.save(step, {"noise": noise}, {})
        saver.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        latest.append(checkpoint.latest_step(context.storage))
        context.exchange.all_gather("saved", step)
    return latest


def fenced_while_saving(context: Context) -> dict[str, Any]:
    """A newer attempt begins between the copy of step 20 and its commit; then the old one tries once more."""
    copied: list[str] = []

    def emit(event: Event) -> None:
        if event == {"type": "phase", "phase": "run"}:  # the state has been copied, nothing is committed yet
            copied.append("once")
            if len(copied) == 2 and context.is_first:
                write_fence(context.storage, 2, "second")

    saver = checkpoint.Saver(dataclasses.replace(context, emit=emit))
    saver.save(10, make(context, {"a": 2, "b": 2}), {})
    saver.wait()
    saver.save(20, make(context, {"a": 2, "b": 2}), {})
    said = []
    for last_try in (saver.wait, lambda: saver.save(30, make(context, {"a": 2, "b": 2}), {})):
        try:
            last_try()
        except FencedError as error:
            said.append(str(error))
    return {"said": said, "latest": checkpoint.latest_step(context.storage)}


def diverged(context: Context, waits: bool) -> dict[str, Any]:
    """The last rank holds other copies of an array that lies on devices, and of one in host memory.

    Args:
        waits: for its save; else it leaves that to the rank, as a workload that returns.
    """
    events: list[Event] = []
    original, context = context, dataclasses.replace(context, emit=events.append)
    mesh = context.mesh({"host": context.num_ranks, "b": jax.local_device_count()})
    is_odd = context.rank == context.num_ranks - 1
    local = [jax.device_put(np.full(4, 1.0 + is_odd, np.float32), device) for device in jax.local_devices()]
    copies = jax.make_array_from_single_device_arrays((8,), NamedSharding(mesh, PartitionSpec("b")), local)
    saver = checkpoint.Saver(context)
    saver.save(1, {"w": copies, "history": np.full(3, 2.0 + is_odd), "good": np.ones(4)}, {})
    try:
        if waits:
            saver.wait()
        else:
            original.finish_saves()
    except ReplicaDivergenceError as error:
        return {
            "said": str(error),
            "suspects": error.suspects,
            "latest": checkpoint.latest_step(context.storage),
            "events": [event for event in events if event["type"] == "verdict"],
        }
    return {}


class HidesWhatItWrites(SharedStore):
    """Of rank 1 at step 2: rank 0 does not see its arrays for so long (None: ever), as in an old listing of NFS's."""

    def __init__(self, storage: str, writer: Writer, hidden_s: float | None):
        super().__init__(storage, writer)
        self._aside = as_path(storage).parent / "aside"
        self._hidden_s = hidden_s

    def deliver(self, name: str) -> Delivered:
        delivered = super().deliver(name)
        arrays = self.open(name) / "state" / f"ocdbt.process_{self._writer.rank}"
        if self._writer.rank == 1 and step_of(name) == 2:
            os.rename(arrays, self._aside)
            if self._hidden_s is not None:
                threading.Timer(self._hidden_s, os.rename, (self._aside, arrays)).start()
        return delivered


def saves_what_is_hidden(context: Context, axes: dict[str, int], hidden_s: float | None) -> list[int]:
    """Saves 1, 2 and 3, where rank 0 may wait for what it does not see for 5 s; returns what has been committed."""
    stores.LISTING_PATIENCE_S = 5.0 if hidden_s is not None else 0.5
    writer = Writer(rank=context.rank, attempt=context.attempt, attempt_id=context.attempt_id, keep=3)
    vars(context)["store"] = HidesWhatItWrites(context.storage, writer, hidden_s)
    saver = checkpoint.Saver(context)
    for step in (1, 2, 3):
        saver.save(step, make(context, axes), {})
    saver.wait()
    steps = sorted(folder.step for folder in find_folders(context.storage) if folder.committed)
    for step in steps:
        restored = checkpoint.restore(context, lambda *_: make(context, axes), step)
        assert restored is not None and restored.step == step
    return steps


def forget_after(storage: str, step: int) -> None:
    """As if the run had been killed before it saved again."""
    for folder in find_folders(storage):
        if folder.step > step:
            remove(folder.path)
