"""What a call of a gang may raise."""

from collections.abc import Mapping
from typing import Any

from launcher.errors import FailureError


class GangError(FailureError):
    """Ranks raised in a call, or did not return the same. The gang is as it was before, and can be used.

    Attributes:
        by_rank: what each of these ranks raised, with its traceback; empty where none did.
    """

    def __init__(self, message: str, by_rank: Mapping[int, str] | None = None):
        super().__init__(message)
        self.by_rank = dict(by_rank or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return GangError, (str(self), self.by_rank)


class GangEndedError(FailureError):
    """The gang has ended, and with it the arrays that it held; `gang.restart()` makes it again."""
