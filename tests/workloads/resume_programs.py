"""Runs on ranks: a workload unbroken, and then resumed from each of its checkpoints."""

import dataclasses
import os
from typing import Any

from tests.workloads.checkpoint_programs import forget_after
from workloads.context import Context, Event
from workloads.errors import ConfigError
from workloads.params import parse
from workloads.registry import find
from workloads.result import Result

# Seconds and rates: of one run, not of the job.
_TIMES = ("compile_s", "run_s", "tokens_per_s", "gradients_per_s", "draws_per_s")


def outcome(result: Result) -> dict[str, Any]:
    """What must be equal bit for bit."""
    metrics = {name: value for name, value in result.metrics.items() if name not in _TIMES}
    return {"digest": result.result_digest, "metrics": metrics}


def run(context: Context, workload: str, settings: dict[str, str], resume: bool = False) -> dict[str, Any]:
    """The whole workload once."""
    spec = find(workload)
    return outcome(spec.run_function()(parse(spec.config_class(), settings), context, resume))


def resumed(context: Context, workload: str, settings: dict[str, str], steps: list[int]) -> list[dict[str, Any]]:
    """Unbroken; then for each step, in falling order, as if killed before it saved again."""
    outcomes = [run(context, workload, settings)]
    for step in steps:
        context.exchange.all_gather("ended", step)
        if context.is_first:
            forget_after(context.storage, step)
        outcomes.append(run(context, workload, settings, resume=True))
    return outcomes


def extended(context: Context, workload: str, short: dict[str, str], long: dict[str, str]) -> list[dict[str, Any]]:
    """Unbroken and long, in a storage of its own; then short, and extended."""
    apart = dataclasses.replace(context, storage=f"{context.storage}-apart")
    return [run(apart, workload, long), run(context, workload, short), run(context, workload, long, resume=True)]


def refused(context: Context, workload: str, first: dict[str, str], others: list[dict[str, str]]) -> list[str]:
    """A run, and what each resume with other settings is told."""
    run(context, workload, first)
    said = []
    for settings in others:
        try:
            run(context, workload, settings, resume=True)
            said.append("accepted")
        except ConfigError as error:
            said.append(str(error))
    return said


def die(context: Context, workload: str, settings: dict[str, str], events: int) -> None:
    """Ends like a killed process at the event of that number, from whichever thread it comes."""
    count = 0

    def emit(event: Event) -> None:
        nonlocal count
        count += 1
        if count == events:
            os._exit(9)

    run(dataclasses.replace(context, emit=emit), workload, settings, resume=True)
