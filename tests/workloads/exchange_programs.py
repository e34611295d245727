"""Runs on ranks: exchanges that succeed, and one that a rank stays away from."""

import time
from typing import Any

from jax._src import distributed

from workloads.context import Context
from workloads.exchange import Exchange


def gather(context: Context) -> dict[str, Any]:
    """Two rounds of one topic, one large value, and what is left in the store after many rounds."""
    first = context.exchange.all_gather("topic", {"rank": context.rank})
    second = context.exchange.all_gather("topic", [context.rank, None, 0.1])
    large = context.exchange.all_gather("large", str(context.rank) * 1_000_000)
    for number in range(20):
        context.exchange.all_gather("many", number)
    left = len(distributed.global_state.client.key_value_dir_get("spmd-launch"))
    return {"first": first, "second": second, "large": [len(text) for text in large], "left": left}


def stay_away(context: Context) -> dict[str, Any]:
    """The last rank skips a round; the others must say so in time. Everybody then meets once more."""
    result: dict[str, Any] = {"error": "", "waited_s": 0.0}
    if context.rank < context.num_ranks - 1:
        start = time.monotonic()
        try:
            Exchange(context.rank, context.num_ranks, timeout_s=1.5).all_gather("skipped", 0)
        except TimeoutError as error:
            result = {"error": str(error), "waited_s": time.monotonic() - start}
    context.exchange.all_gather("done", None)
    return result


def first_stays_away(context: Context) -> str:
    """Rank 0 skips a round in a job of three; rank 1 posts, so that only rank 0 may be named."""
    message = ""
    if context.rank > 0:
        try:
            Exchange(context.rank, context.num_ranks, timeout_s=1.5).all_gather("skipped", 0)
        except TimeoutError as error:
            message = str(error)
    context.exchange.all_gather("done", None)
    return message


def get_on(context: Context) -> dict[str, Any]:
    """The last rank comes after four seconds, and says meanwhile that it gets on; to other rounds it does not come.

    For these nobody waits: the coordination service may need longer than that to answer, of the rank's own post too.
    """
    first = context.rank == 0
    exchange = Exchange(context.rank, context.num_ranks, timeout_s=1.5)
    context.exchange.all_gather("start", None)
    for number in range(0 if first else 8):
        exchange.tell("work", number)
        time.sleep(0.5)
    start = time.monotonic()
    exchange.all_gather("late", None, moves=lambda: exchange.told("work", context.num_ranks - 1))
    waited_s = time.monotonic() - start
    errors, at_once_s = [], []
    for _ in range(100 if first else 0):
        start = time.monotonic()
        try:
            exchange.all_gather("skipped", None, 0)
        except TimeoutError as error:
            errors.append(str(error))
            at_once_s.append(time.monotonic() - start)
    context.exchange.all_gather("done", None)
    return {"waited_s": waited_s, "errors": errors, "at_once_s": at_once_s}
