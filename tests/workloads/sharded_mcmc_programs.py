"""Whole runs of `sharded-mcmc` on every rank."""

from typing import Any

from tests.workloads.checkpoint_programs import forget_after
from workloads.context import Context
from workloads.sharded_mcmc import run as workload
from workloads.sharded_mcmc.config import Config


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
