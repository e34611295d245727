"""What the ranks of `test_bandwidth_check.py` run."""

import dataclasses
from typing import Any

import numpy as np

from workloads.bandwidth_check import measure
from workloads.bandwidth_check.config import Config
from workloads.bandwidth_check.plan import ALL_GATHER
from workloads.bandwidth_check.run import run
from workloads.context import Context


def check(context: Context, config: dict[str, Any]) -> dict[str, Any]:
    return dataclasses.asdict(run(Config(**config), context))


def gather_from_a_wrong_host(context: Context) -> str:
    """The first rank puts in one wrong element; what each rank then says."""
    honest = measure.put_in

    def dishonest(device: int, elements: int) -> np.ndarray:
        part = honest(device, elements)
        part[3] += 1
        return part

    if context.rank == 0:
        measure.put_in = dishonest
    group = measure.Group(range(context.num_ranks), context.exchange, [f"host-{k}" for k in range(context.num_ranks)])
    try:
        group.measure(ALL_GATHER, 256, 0.0)
    except RuntimeError as error:
        return str(error)
    return ""
