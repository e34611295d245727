"""Runs on ranks: the programs of `checkpoint_programs`, on hosts that share no disk but reach a keeper on the head."""

import asyncio
import dataclasses
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.attempt import RankTask
from launcher.host_copies import HostCopies
from launcher.keeper import Keeper
from tests.launcher.in_process import InProcess
from tests.workloads import checkpoint_programs
from workloads.context import Context
from workloads.errors import StorageError


def save(context: Context, **arguments: Any) -> Any:
    """As `checkpoint_programs.save`, but that the newest step is looked for on the head."""
    saved = checkpoint_programs.save(on_own_disk(context), **arguments)
    return {"digest": saved["digest"], "newest": saved["newest"]}


def restore(context: Context, **arguments: Any) -> Any:
    return checkpoint_programs.restore(on_own_disk(context), **arguments)


def restore_on_a_full_disk(context: Context, full_on: int, **arguments: Any) -> str:
    """What every rank says where one of them can write no file of more than 100 bytes (a real write error)."""
    if context.rank == full_on:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    said = "restored"
    try:
        checkpoint_programs.restore(on_own_disk(context), step=None, **arguments)
    except StorageError as error:
        said = str(error).partition("(")[2]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return said


def on_own_disk(context: Context) -> Context:
    """The same rank with a folder of its own, `host-K`, and what it asks its agent answered in this process."""
    head = Path(context.storage)
    task = RankTask(
        attempt=context.attempt, resume=True, keep=3, program_barrier=True, faults=(), attempt_id=context.attempt_id,
        job="job", rank=context.rank, num_ranks=context.num_ranks, workload="", settings={}, files={}, seed=0,
        checkpoint_every=0, check_every=0, jax_config={}, code_digest="", storage=str(head), own_disk=True,
    )  # fmt: skip
    copies = HostCopies(InProcess(Keeper()), task, head.parent / f"host-{context.rank}")
    return dataclasses.replace(context, storage=str(copies.folder), ask=_asking(copies))


def _asking(copies: HostCopies) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda question: asyncio.run(copies.answer(question))
