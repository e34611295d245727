"""An object called as a Ray actor is, without Ray: what it raises comes as Ray raises it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ray.exceptions import RayTaskError


class InProcess:
    """Stands for a handle.

    Args:
        actor: with async methods.
    """

    def __init__(self, actor: Any):
        self._actor = actor

    def __getattr__(self, name: str) -> "_Method":
        return _Method(getattr(self._actor, name))


class _Method:
    def __init__(self, method: Callable[..., Awaitable[Any]]):
        self._method = method

    def remote(self, *args: Any) -> asyncio.Future[Any]:
        """Begins at once, as there: who does not want the answer need not wait for it."""
        return asyncio.ensure_future(self._call(*args))

    async def _call(self, *args: Any) -> Any:
        try:
            return await self._method(*args)
        except Exception as error:
            raise RayTaskError("method", str(error), error).as_instanceof_cause() from error
