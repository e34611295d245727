"""Whole runs of `sharded-mcmc` on every rank."""

from typing import Any

import numpy as np

from tests.workloads.checkpoint_programs import forget_after
from workloads.context import Context
from workloads.errors import InputMismatchError, ReplicaDivergenceError
from workloads.sharded_mcmc import run as workload
from workloads.sharded_mcmc.config import Config
from workloads.sharded_mcmc.history import History


def run(context: Context, **settings: Any) -> dict[str, Any]:
    """The whole workload."""
    result = workload.run(Config(**settings), context)
    return {"metrics": dict(result.metrics), "diagnostics": result.diagnostics, "digest": result.result_digest}


def unbroken_and_resumed(context: Context, resume_step: int, **settings: Any) -> list[dict[str, Any]]:
    """A run that saves on its way, and one that goes on from there: later steps are taken away."""
    config = Config(**settings)
    unbroken = workload.run(config, context)
    context.exchange.all_gather("unbroken", "ended")
    if context.is_first:
        forget_after(context.storage, resume_step)
    results = unbroken, workload.run(config, context, resume=True)
    return [{"metrics": dict(result.metrics), "digest": result.result_digest} for result in results]


def with_a_flip_in_the_history(context: Context, step: int, **settings: Any) -> dict[str, Any]:
    """A run in which one bit flips in the memory of the last host, in what `step` has recorded; what is told."""
    record = History.record_stats

    def flip(self: History, start: int, stats: Any) -> None:
        record(self, start, stats)
        if context.rank == context.num_ranks - 1 and start <= step < start + len(stats["log_density"]):
            self.stats["log_density"][step, 1:2].view(np.uint32)[:] ^= 1 << 20

    History.record_stats = flip  # type: ignore[method-assign]
    try:
        workload.run(Config(**settings), context)
    except ReplicaDivergenceError as error:
        return {
            "said": str(error),
            "suspects": error.suspects,
            "files": [str(path) for path in context.output.rglob("*.nc")],
        }
    return {}


def other_data_on_first_rank(context: Context) -> str:
    """What every rank is told when rank 0 has an old file."""
    images = np.full((4, 3, 3), 1 if context.is_first else 2, np.uint8)
    labels = np.arange(4)
    path = context.output / "images.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    try:
        workload.run(Config(model="logistic", data=str(path)), context)
    except InputMismatchError as error:
        assert error.cause == "refused"  # it would end so again
        return str(error)
    return "nothing"
