"""Gives every host of an attempt the environment that its requirements ask for, before any rank starts."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from ray.exceptions import RayError

from cluster.host_environment import MAKE_TIMEOUT_S
from launcher.attempt import EnvironmentMade, RankStatus, RankTask
from launcher.command import REQUIREMENTS
from launcher.first_cause import FirstCause
from launcher.host_wait import while_it_answers
from launcher.parity import odd_ones
from launcher.rank_process import Message
from launcher.recovery import Cause

PHASE = "environment"
LOOK_PERIOD_S = 1.0
SAYS_TIMEOUT_S = 3.0
STOP_TIMEOUT_S = 10.0
MAX_DIFFERENCES = 10
Hear = Callable[[int, Message], None]


async def make_environments(
    agents: Sequence[Any], tasks: Sequence[RankTask], ranks: Sequence[RankStatus], hear: Hear
) -> FirstCause | None:
    """Makes them on all hosts at once; returns why not, or None.

    When this is cancelled, or one host fails, nothing goes on on the others.

    Args:
        agents: Ray handles, in the order of ranks.
        tasks: one a rank.
        ranks: whose phases tell how far it is.
        hear: receives `(rank, event)` for everything worth recording.

    Raises:
        HostError: a host was lost, or stands still.
    """
    if REQUIREMENTS not in tasks[0].files:
        return None
    makings = [asyncio.ensure_future(_make(*each, hear)) for each in zip(agents, tasks, ranks, strict=True)]
    try:
        for making in asyncio.as_completed(makings):
            made = await making
            if made.error:
                break
    finally:
        for making in makings:
            making.cancel()
        await asyncio.gather(*makings, return_exceptions=True)
    ended = {rank.host: making.result() for rank, making in zip(ranks, makings, strict=True) if not making.cancelled()}
    for host, made in ended.items():
        if made.error:
            return FirstCause(sentence=f"host {host} cannot make the environment of the job", details=made.error)
    differences = compare_environments({host: made.versions for host, made in ended.items()})
    if differences:
        details = "\n".join(differences[:MAX_DIFFERENCES])
        return FirstCause(
            sentence="the hosts' environments differ after all have installed one list", details=details,
            cause=Cause.REFUSED,
        )  # fmt: skip
    return None


def compare_environments(versions: dict[str, Any]) -> list[str]:
    """In which packages hosts differ from the others, one line each.

    Args:
        versions: of each host, by package.
    """
    packages = sorted({package for own in versions.values() for package in own})
    return [
        str(difference)
        for package in packages
        for difference in odd_ones(package, {host: own.get(package, "none") for host, own in versions.items()})
    ]


async def _make(agent: Any, task: RankTask, rank: RankStatus, hear: Hear) -> EnvironmentMade:
    """Makes one, with the last that uv has said in view."""
    rank.phase = PHASE
    hear(rank.rank, {"type": "phase", "phase": PHASE})
    asked = asyncio.ensure_future(while_it_answers(rank.host, agent, _answer(agent.make_environment.remote(task))))
    try:
        async with asyncio.timeout(MAKE_TIMEOUT_S):
            while not (await asyncio.wait([asked], timeout=LOOK_PERIOD_S))[0]:
                rank.phase = await _says(agent, task)
        made = asked.result()
    except TimeoutError:
        made = EnvironmentMade(error=f"it was not made within {MAKE_TIMEOUT_S:g} s")
    finally:
        rank.phase = "start"
        if not asked.done():
            asked.cancel()
            with contextlib.suppress(RayError, TimeoutError):
                await asyncio.wait_for(agent.stop.remote(task.attempt_id), STOP_TIMEOUT_S)
    hear(rank.rank, {"type": "environment", "packages": len(made.versions), "seconds": made.seconds})
    return made


async def _says(agent: Any, task: RankTask) -> str:
    try:
        said = await asyncio.wait_for(agent.making_says.remote(task.attempt_id), SAYS_TIMEOUT_S)
    except (RayError, TimeoutError):  # who waits for the environment hears of it
        return PHASE
    return f"{PHASE}: {said}" if said else PHASE


async def _answer(reference: Any) -> EnvironmentMade:
    made: EnvironmentMade = await reference
    return made
