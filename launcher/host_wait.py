"""Waits for what an agent does, however long it takes, but not for one that stands still."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

from ray.exceptions import RayError, RayTaskError

from launcher.errors import FailureError
from launcher.watchdog import Bounds

SILENT_S = Bounds().host_lost_s  # as of a host whose rank runs: a short cut of the network is survived
LOOK_PERIOD_S = 1.0
T = TypeVar("T")


class HostError(FailureError):
    """A host did not do what it was asked.

    Attributes:
        lost: it is gone, or stands still; else its agent could not do it.
    """

    def __init__(self, text: str, *, lost: bool):
        super().__init__(text)
        self.lost = lost


async def while_it_answers(host: str, agent: Any, asked: Awaitable[T]) -> T:
    """What an agent was asked for; whether it still answers is looked at beside.

    Args:
        host: its name.
        agent: its Ray handle.
        asked: the answer that is waited for.

    Raises:
        HostError: the host is lost, its agent has said nothing for `SILENT_S`, or it could not do it.
    """
    work = asyncio.ensure_future(asked)
    silence = asyncio.ensure_future(_silence(agent, work))
    try:
        await asyncio.wait([work, silence], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        silence.result()
        raise HostError(f"host {host} was lost: its agent has not answered for {SILENT_S:g} s", lost=True)
    except RayTaskError as error:
        raise HostError(f"host {host}: {in_words(error)}", lost=False) from error
    except RayError as error:
        raise HostError(f"host {host} was lost ({type(error).__name__})", lost=True) from error
    finally:
        work.cancel()
        silence.cancel()


async def _silence(agent: Any, work: asyncio.Future[Any]) -> None:
    """Returns when an agent has said nothing for too long, or its work is done."""
    with contextlib.suppress(TimeoutError):
        while not work.done():  # and not for ever until it is cancelled: Python's `wait_for` can swallow that
            with contextlib.suppress(RayError):  # who waits for its work hears of it
                await asyncio.wait_for(agent.clock.remote(), SILENT_S)
            await asyncio.sleep(LOOK_PERIOD_S)


def in_words(error: RayTaskError) -> str:
    """What an agent has raised: its host is not lost."""
    return f"{type(error.cause).__name__}: {error.cause}"
