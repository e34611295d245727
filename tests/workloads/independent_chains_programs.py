"""What the tests of `independent-chains` run on several ranks; returns JSON."""

import dataclasses
import hashlib
from typing import Any

import jax
import numpy as np

from workloads.context import Context
from workloads.errors import ReplicaDivergenceError
from workloads.independent_chains.config import Config
from workloads.independent_chains.history import History
from workloads.independent_chains.job import start_job


def digest(history: History) -> str:
    """sha256 over all bits of a history."""
    leaves = jax.tree.leaves(history.arrays())
    return hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)).hexdigest()


def sample(context: Context, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples with each of the settings; tells what this rank gathered."""
    outcomes = []
    for setting in settings:
        job = start_job(Config(**setting), context)
        job.sample(0)
        state, history = job.gather()
        verdict = job.check(job.config.num_transitions, state, history)
        outcomes.append(
            {
                "digest": digest(history),
                "status": verdict.status,
                "bytes_checked": verdict.bytes_checked,
                "bytes_single_copy": verdict.bytes_single_copy,
                "idle": job.layout.num_idle_devices,
            }
        )
    return outcomes


def tamper(context: Context, setting: dict[str, Any]) -> str:
    """The last rank's copy of the gathered draws has one wrong bit: what the replica check says."""
    job = start_job(Config(**setting), context)
    job.sample(0)
    state, history = job.gather()
    if context.rank == context.num_ranks - 1:
        history = dataclasses.replace(history, draws={name: array.copy() for name, array in history.draws.items()})
        history.draws["x"].view(np.uint32)[3, 5, 0] ^= 1
    try:
        job.check(job.config.num_transitions, state, history)
    except ReplicaDivergenceError as error:
        return str(error)
    return "no divergence found"
