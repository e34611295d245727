"""Runs on ranks: when something is due by cost, and workloads that save by cost."""

import dataclasses
import itertools
import threading
import time
from typing import Any

from tests.workloads.resume_programs import run
from workloads.cadence import Budget, Cadence
from workloads.context import Context

HALF = 12  # of the steps of `resume_programs`' workloads


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

    committed = threading.Event()

    def tell(event: dict[str, Any]) -> None:
        if event["type"] == "checkpoint":
            committed.set()
        context.emit(event)

    def drag(step: int, state: Any) -> Any:
        time.sleep(0.05 * (1 + context.rank))
        if step >= HALF and context.rank == 0:
            assert committed.wait(60.0), "the first one"  # or a slow disk would leave no step for a second one
        return state

    slow = dataclasses.replace(context, on_step=drag, emit=tell)
    vars(slow)["save_cadence"] = Cadence(context.exchange.apart("often"), None, Budget(share=1000.0, first_s=0.0))
    return [run(calm, workload, settings), run(slow, workload, settings)]


def saved_when_asked(context: Context, workload: str, settings: dict[str, str]) -> list[dict[str, Any]]:
    """The workload unbroken, then asked to save from a thread, by each rank at another of its steps."""
    calm = dataclasses.replace(
        context, checkpoint_every=0, storage=f"{context.storage}-calm", exchange=context.exchange.apart("calm")
    )
    asked: list[int] = []

    def drag(step: int, state: Any) -> Any:
        time.sleep(0.02 * (1 + context.rank))
        if step >= 4 + 2 * context.rank and not asked:
            asked.append(step)
            threading.Thread(target=lambda: (time.sleep(0.01), busy.save_requests.ask(1))).start()
        return state

    busy = dataclasses.replace(context, checkpoint_every=0, on_step=drag, exchange=context.exchange.apart("busy"))
    return [run(calm, workload, settings), run(busy, workload, settings)]


def due_when_asked(context: Context, every: int | None, num_requests: int) -> dict[str, Any]:
    """Steps at which a save was due, asked for at moments of each rank's own; rank 1 hears some of them twice."""
    requests = context.save_requests
    cadence = Cadence(context.exchange, every, Budget(share=0.05, first_s=60.0), requests=requests)

    def ask() -> None:
        for number in range(1, num_requests + 1):
            time.sleep(0.02 * (1 + 2 * context.rank))
            for _ in range(1 + context.rank):
                requests.ask(number)

    thread = threading.Thread(target=ask)
    thread.start()
    due, step, after = [], 0, 0
    while after < 3:  # steps that all have made since nothing can come any more
        step += 1
        time.sleep(0.002 * (1 + context.rank))
        if cadence.due(step, 10_000):
            due.append(step)
            cadence.done()
        if step % 20 == 0 and all(context.exchange.all_gather("asked", not thread.is_alive())):
            after += 1
    return {"due": due, "steps": step}
