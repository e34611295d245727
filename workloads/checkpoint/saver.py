"""Saves in the background: Orbax writes what was copied off the devices, then rank 0 commits by the manifest."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from workloads.checkpoint.leaves import (
    add_up,
    describe,
    finish_fingerprints,
    join_blocks,
    named_leaves,
    start_fingerprints,
)
from workloads.checkpoint.stored import check_storable, to_stored, without_key_type
from workloads.computed_with import computed_with
from workloads.durable import as_path
from workloads.errors import FencedError
from workloads.exchange import Exchange
from workloads.integrity.verdict import Verdict, judge
from workloads.storage.folders import STATE
from workloads.storage.manifest import Manifest

if TYPE_CHECKING:  # Orbax takes 1 s to import, and a job may never save
    import orbax.checkpoint as ocp

    from workloads.context import Context

PyTree = Any

SAVE_TIMEOUT_S = 1200.0

# What a write that fails raises: TensorStore reports a full disk as a ValueError.
_WRITE_ERRORS = (OSError, ValueError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Save:
    """One save under way, as this rank knows it.

    Attributes:
        step: steps (or draws) that the state has behind it.
        name: of its folder; the same on all ranks.
        leaves: the tree without typed keys, for descriptions alone: the arrays may be donated meanwhile.
        metadata: the workload's own.
        fingerprints: started.
        written: what Orbax has under way.
        problem: why this rank could not write, or ''.
        started: `time.perf_counter()`; `blocked_s` is how long the workload was held.
    """

    step: int
    name: str
    leaves: dict[str, Any]
    num_bytes: int
    metadata: dict[str, Any]
    fingerprints: dict[str, Any]
    written: list[Any]
    problem: str
    started: float
    blocked_s: float


class Saver:
    """Writes a workload's checkpoints, at most one at a time; every rank has one and calls it in the same order.

    Args:
        context: its `storage` is the folder or URL under which steps go.
    """

    def __init__(self, context: Context):
        self._context = context
        self._last_good: int | None = None
        self._exchange = Exchange(context.rank, context.num_ranks, SAVE_TIMEOUT_S)  # the thread's own
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: concurrent.futures.Future[None] | None = None
        self._newest = ""
        self._handler: ocp.StandardCheckpointHandler | None = None

    def start_from(self, step: int) -> None:
        """Names the step that the run was restored from as the last good one so far."""
        self._last_good = step

    def save(self, step: int, state: PyTree, metadata: dict[str, Any]) -> None:
        """Copies the state off the devices and returns; the step counts when the event `checkpoint` says so.

        Where the storage fails (a full disk), the event `checkpoint-failed` says why and names the last good step, and
        the work goes on. Waits first for the save before.

        Args:
            step: steps (or draws) that the state has behind it; one that is there already is replaced.
            state: leaves are global `jax.Array`s of any sharding (typed PRNG keys too), or NumPy arrays and numbers
                that are equal on all ranks. It may be donated or changed as soon as this returns.
            metadata: what JSON can hold, equal on all ranks. Seed and parameters are recorded besides.

        Raises:
            TypeError: JSON cannot hold the metadata, or no storage can hold a leaf (text, dates, `longdouble`, ...).
            ValueError: two leaves have one name.
            FencedError: a newer attempt of the job has begun.
            ReplicaDivergenceError: copies differed in the save before; names leaf, block, holders and the vote.
            LaunchOrderError: the ranks have not launched the same until here.
        """
        json.dumps(metadata)  # these raise before anything is written
        check_storable(named_leaves(state))
        with self._context.phase("checkpoint"):
            started = time.perf_counter()
            self._context.saves_under_way.wait()  # of another saver too: it would be cleared away as left unfinished
            self._context.agree(f"checkpoint {step}")
            name = self._begin(step)
            if name is None:
                return
            under_way = self._copy(name, step, state, metadata, started)
        self._pending = self._thread.submit(self._finish, under_way)
        self._context.saves_under_way.begin(self.wait)

    def wait(self) -> str:
        """Waits until nothing is under way, as a rank does by itself when its workload returns.

        Returns:
            The path of the newest step that this saver has committed, or ''.

        Raises:
            FencedError, ReplicaDivergenceError: of the save that was under way.
            TimeoutError: a rank did not come.
        """
        pending, self._pending = self._pending, None
        if pending:
            self._context.saves_under_way.end(self.wait)
            pending.result(2 * SAVE_TIMEOUT_S)
        return self._newest

    def _begin(self, step: int) -> str | None:
        """Rank 0 begins the step; returns its name, or None: the storage fails."""
        context = self._context
        name = problem = fenced = ""
        if context.is_first:
            try:
                name = context.store.begin(step)
            except OSError as error:
                problem = f"rank {context.rank}: {_words(error)}"
            except FencedError as error:
                fenced = str(error)
        name, problem, fenced = context.exchange.all_gather("checkpoint folder", [name, problem, fenced])[0]
        if fenced:
            raise FencedError(fenced)
        if problem:
            self._tell_failed(step, problem)
            return None
        return str(name)

    def _copy(self, name: str, step: int, state: PyTree, metadata: dict[str, Any], started: float) -> _Save:
        """Starts the fingerprints and Orbax; when this returns, nobody looks at `state` any more."""
        import orbax.checkpoint as ocp

        plain = jax.tree.map(without_key_type, state)
        leaves = named_leaves(plain)
        fingerprints = start_fingerprints(leaves)
        if self._handler is None:
            self._handler = make_handler()
        written: list[Any] = []
        problem = ""
        try:
            folder = self._context.store.open(name)
            saving = self._handler.async_save(
                folder / STATE, args=ocp.args.StandardSave(jax.tree.map(to_stored, plain))
            )
            # In the thread: here a notebook's event loop may be running.
            written = self._thread.submit(asyncio.run, saving).result(SAVE_TIMEOUT_S) or []
        except _WRITE_ERRORS as error:
            if not _is_of_the_disk(error):
                raise  # the tree cannot be saved, on whatever disk
            problem = _words(error)
        return _Save(
            step=step,
            name=name,
            leaves={name: describe(leaf) for name, leaf in leaves.items()},
            num_bytes=sum(leaf.nbytes if hasattr(leaf, "nbytes") else 8 for leaf in leaves.values()),
            metadata=metadata,
            fingerprints=fingerprints,
            written=written,
            problem=problem,
            started=started,
            blocked_s=time.perf_counter() - started,
        )

    def _finish(self, save: _Save) -> None:
        """In the thread: waits for this rank's writes, hears of everybody's, and lets rank 0 commit."""
        heard = self._exchange.all_gather(f"written {save.name}", self._deliver(save))
        verdict, fingerprints = _compare(save, heard)
        diverged = verdict.status == "diverged"
        outcome: dict[str, Any] = {what: _by_rank(heard, what) for what in ("fenced", "problem")} | {"kept": []}
        if self._context.is_first and not (outcome["fenced"] or outcome["problem"] or diverged):
            outcome |= self._commit(save, heard, fingerprints)
        outcome = self._exchange.all_gather(f"committed {save.name}", outcome)[0]
        self._clean_up(save, outcome, counts=not (outcome["fenced"] or outcome["problem"] or diverged))
        if outcome["fenced"]:
            raise FencedError(outcome["fenced"])
        if diverged:
            self._context.emit({"type": "verdict", **dataclasses.asdict(verdict)})
            verdict.raise_if_diverged(f"the checkpoint of step {save.step} was not saved: copies")
        if outcome["problem"]:
            self._tell_failed(save.step, outcome["problem"])
        else:
            self._tell_committed(save, sum(said["copied_bytes"] for said in heard))

    def _deliver(self, save: _Save) -> dict[str, Any]:
        """Waits for this rank's writes and hands them in; what there is to tell the other ranks of it."""
        said: dict[str, Any] = {"problem": save.problem, "fenced": "", "files": {}, "copied_bytes": 0}
        try:
            if not save.problem:
                for future in save.written:
                    future.result(timeout=SAVE_TIMEOUT_S)
                said |= dataclasses.asdict(self._context.store.deliver(save.name))
        except FencedError as error:
            said["fenced"] = str(error)
        except _WRITE_ERRORS as error:
            said["problem"] = _words(error)
        return {**said, "host": self._context.host, "parts": finish_fingerprints(save.fingerprints)}

    def _commit(self, save: _Save, heard: Sequence[dict[str, Any]], fingerprints: Mapping[str, str]) -> dict[str, Any]:
        """On rank 0: makes the step count."""
        context = self._context
        manifest = Manifest(
            step=save.step,
            attempt=context.attempt,
            attempt_id=context.attempt_id,
            seed=context.seed,
            config=dict(context.config),
            metadata=save.metadata,
            leaves={
                name: dataclasses.replace(leaf, fingerprint=fingerprints[name]) for name, leaf in save.leaves.items()
            },
            files={name: facts for said in heard for name, facts in said["files"].items()},
            computed_with=computed_with(),
        )
        try:
            assert self._handler is not None
            return {"kept": context.store.commit(save.name, manifest, self._handler.finalize)}
        except FencedError as error:
            return {"fenced": str(error)}
        except _WRITE_ERRORS as error:
            return {"problem": f"rank {context.rank}: {_words(error)}"}

    def _clean_up(self, save: _Save, outcome: dict[str, Any], *, counts: bool) -> None:
        """Removes what came to nothing, or what the new step has made superfluous on this host."""
        with contextlib.suppress(OSError, FencedError):  # it stays for the next save to remove
            if counts:
                self._context.store.prune(outcome["kept"])
            else:
                self._context.store.discard(save.name)

    def _tell_committed(self, save: _Save, copied_bytes: int) -> None:
        self._context.save_cadence.done()
        self._context.on_saved(save.step, True)
        self._last_good, self._newest = save.step, str(as_path(self._context.storage) / save.name)
        event = {"type": "checkpoint", "step": save.step, "path": self._newest, "bytes": int(save.num_bytes)}
        if copied_bytes:
            event["copied_bytes"] = copied_bytes
        seconds = {"seconds": time.perf_counter() - save.started, "blocked_s": save.blocked_s}
        if self._context.is_first:
            self._context.emit({**event, **seconds})

    def _tell_failed(self, step: int, why: str) -> None:
        """The work goes on without this step."""
        self._context.save_cadence.done()
        self._context.on_saved(step, False)
        if self._context.is_first:
            event = {"type": "checkpoint-failed", "step": step, "why": why, "last_good": self._last_good}
            self._context.emit(event)
            good = "none" if self._last_good is None else f"step {self._last_good}"
            self._context.log(f"checkpoint of step {step} failed ({why}); the last good one: {good}")


def save(context: Context, step: int, state: PyTree, metadata: dict[str, Any]) -> str:
    """Saves one step and waits until it is committed; see `Saver.save`.

    Returns:
        The path of the step's folder, or '' where the storage failed.
    """
    saver = Saver(context)
    saver.save(step, state, metadata)
    return saver.wait()


def make_handler() -> ocp.StandardCheckpointHandler:
    """Orbax's part: one tree of arrays. It has no barriers; the ranks meet in our exchange, which names who is late."""
    import orbax.checkpoint as ocp

    processes = ocp.options.MultiprocessingOptions(primary_host=0)
    return ocp.StandardCheckpointHandler(multiprocessing_options=processes)


def _compare(save: _Save, heard: Sequence[dict[str, Any]]) -> tuple[Verdict, dict[str, str]]:
    """The vote over the copies that were to be saved, the same on all ranks; and the fingerprint of each leaf."""
    blocks = join_blocks([said["host"] for said in heard], [said["parts"] for said in heard], save.leaves)
    verdict = judge(
        [block for of_leaf in blocks.values() for block in of_leaf],
        step=save.step,
        num_leaves=len(blocks),
        seconds=time.perf_counter() - save.started,
    )
    # Without digests: a replay is asked for those of replica checks, with which these cannot be compared.
    divergences = tuple(dataclasses.replace(divergence, digests=()) for divergence in verdict.divergences)
    fingerprints = {name: add_up(of_leaf) for name, of_leaf in blocks.items()}
    return dataclasses.replace(verdict, divergences=divergences), fingerprints


def _is_of_the_disk(error: OSError | ValueError) -> bool:
    """Whether the storage is at fault: TensorStore, which may write while the state is copied, says so in words."""
    return isinstance(error, OSError) or "os_error_code" in str(error)


def _by_rank(heard: Sequence[dict[str, Any]], what: str) -> str:
    return "; ".join(f"rank {rank}: {said[what]}" for rank, said in enumerate(heard) if said[what])


def _words(error: BaseException) -> str:
    return textwrap.shorten(f"{type(error).__name__}: {error}", 1000)
