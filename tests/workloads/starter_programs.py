"""The workload that `new` writes, on several ranks; returns JSON."""

from typing import Any

from workloads.context import Context
from workloads.starter.my_workload import Config, run


def fit(context: Context) -> dict[str, Any]:
    """Its digest and its loss after 40 steps."""
    result = run(Config(num_steps=40), context)
    return {"digest": result.result_digest, "loss": result.metrics["loss"]}
