"""What the tests of `sharded-mcmc` run on every rank."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from workloads.context import Context
from workloads.sharded_mcmc import run as workload
from workloads.sharded_mcmc.config import Config
from workloads.sharded_mcmc.placement import DATA_AXIS
from workloads.sharded_mcmc.setup import build_model, build_program, compile_program


def run(context: Context, **settings: Any) -> dict[str, Any]:
    """The whole workload."""
    result = workload.run(Config(**settings), context)
    return {"metrics": dict(result.metrics), "diagnostics": result.diagnostics, "digest": result.result_digest}
