"""Calls that may hang for ever, as on a file server that is gone: a thread each, as those that all share are few."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def begin(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Calls it in a thread of its own, which keeps no process from ending."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # whoever stops waiting for it does not stop it

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)

    threading.Thread(target=run, name=f"own-{function.__name__}", daemon=True).start()
    return future


async def in_own_thread(function: Callable[..., T], *arguments: Any) -> T:
    """As `asyncio.to_thread`."""
    return await asyncio.wrap_future(begin(function, *arguments))
