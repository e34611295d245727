"""What is not finite is told once, at the step where it was first seen."""

from pathlib import Path
from typing import Any

import numpy as np

from workloads.context import Context
from workloads.independent_chains.config import Config
from workloads.independent_chains.job import start_job
from workloads.independent_chains.report import assess


def told(events: list[dict[str, Any]]) -> list[str]:
    return [event["text"] for event in events if event["type"] == "warning"]


def test_a_reported_metric_is_told_of_once_each(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    context = Context.local(tmp_path, emit=events.append)
    context.report(5, 20, loss=1.5, accuracy=0.5)
    context.report(10, 20, loss=float("nan"), accuracy=0.5)
    context.report(15, 20, loss=float("nan"), accuracy=float("-inf"))
    expected = ["loss is nan, first seen at step 10", "accuracy is -inf, first seen at step 15"]
    assert told(events) == context.finite.problems == expected
    context.finite.look_at_result({"loss": float("nan"), "val_loss": float("inf"), "steps": 20.0})
    assert context.finite.problems == [*expected, "val_loss of the result is inf"]


def test_of_the_steps_of_a_dispatch_the_first_is_named(tmp_path: Path) -> None:
    context = Context.local(tmp_path)
    context.finite.look("loss", np.ones(10), 10)
    context.finite.look("loss", np.array([1.0, 1.0, np.inf, np.nan], np.float32), 14)
    rows = np.zeros((4, 3))
    rows[1, 2] = np.nan
    context.finite.look("log_density", rows, 4)
    assert context.finite.problems == ["loss is inf, first seen at step 13", "log_density is nan, first seen at step 2"]


def test_chains_are_looked_at_as_they_go_and_named_at_the_end(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    config = Config(model="gaussian", num_chains=4, block_size=2, num_warmup=2, num_draws=8, draws_per_dispatch=5)
    job = start_job(config, Context.local(tmp_path, emit=events.append))
    job.sample(0)
    assert told(events) == []
    job.runs[1].history.stats["lp"][1, 7] = np.nan
    job._report(10)
    assert told(events) == ["log_density is nan, first seen at step 8"]
    problems = assess(config, job.gather()[1], job.layout)[1]["problems"]
    assert "log density is NaN or infinite in chain 3: these chains are lost" in problems
