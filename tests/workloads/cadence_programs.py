"""Runs on ranks: when something is due by cost, and workloads that save by cost."""

import dataclasses
import itertools
import time
from typing import Any

from tests.workloads.resume_programs import run
from workloads.cadence import Budget, Cadence
from workloads.context import Context


def due(context: Context, share: float) -> dict[str, Any]:
    """Steps at which something was due by cost, one rank being slower than the other, its costs too."""
    cadence = Cadence(context.exchange, None, Budget(share=share, first_s=0.0))
    slower = 1 + context.rank
    due, asked = [], 0
    for step in itertools.count(1):
        time.sleep(0.001 * slower)
        asked += step >= cadence.next_step(step - 1, 10_000)
        if cadence.due(step, 10_000):
            due.append(step)
            time.sleep(0.0005 * slower)
            cadence.done()
        if len(due) == 3:
            break
    return {"due": due, "asked": asked}


def saved_at_every_chance(context: Context, workload: str, settings: dict[str, str]) -> list[dict[str, Any]]:
    """The workload without a checkpoint, then with one by cost whenever none is under way; one rank is slower."""
    calm = dataclasses.replace(
        context, checkpoint_every=0, storage=f"{context.storage}-calm", exchange=context.exchange.apart("calm")
    )

    def drag(step: int, state: Any) -> Any:
        time.sleep(0.05 * (1 + context.rank))
        return state

    slow = dataclasses.replace(context, on_step=drag)
    vars(slow)["save_cadence"] = Cadence(context.exchange.apart("often"), None, Budget(share=1000.0, first_s=0.0))
    return [run(calm, workload, settings), run(slow, workload, settings)]
