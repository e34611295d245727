"""Runs on ranks: a short training, and what it must be equal to on every layout."""

from typing import Any

from workloads.context import Context
from workloads.params import parse
from workloads.transformer.config import Config
from workloads.transformer.run import run


def train(context: Context, settings: dict[str, str]) -> dict[str, Any]:
    """The whole workload."""
    result = run(parse(Config, settings), context)
    curves = (context.results_folder() / "curves.csv").read_text() if context.is_first else ""
    return {
        "metrics": dict(result.metrics),
        "diagnostics": dict(result.diagnostics),
        "digest": result.result_digest,
        "curves": curves,
    }
