"""An exception that ends a rank, as its agent is told of it."""

import traceback
from types import TracebackType
from typing import Any

from launcher.rank.memory import memory_that_ran_out

KNOWS = ("cause", "suspects", "ranks")  # what an error of ours may know: see `launcher.job.RankEnd`


def error_details(
    error: BaseException, trace: TracebackType | None, *, is_ours: bool, peak_bytes: int
) -> dict[str, Any]:
    """`launcher.job.RankEnd.error`, and `memory` where it ran out.

    Args:
        error: that was raised.
        trace: the part of its traceback that is told.
        is_ours: whether it is of a class of ours; a user's own may mean anything by the names in KNOWS.
        peak_bytes: the most memory that this process has had; 0: not known.
    """
    text = "".join(traceback.format_exception(type(error), error, trace))
    details: dict[str, Any] = {"type": type(error).__name__, "message": str(error), "traceback": text}
    if is_ours:
        details |= {name: getattr(error, name) for name in KNOWS if hasattr(error, name)}
    if (memory := memory_that_ran_out(error, peak_bytes)) is not None:
        details["memory"] = memory
    return details
