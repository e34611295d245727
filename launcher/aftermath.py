"""What the end of a peer leaves behind on other ranks: pure functions of how they ended."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.job import RankEnd
from launcher.recovery import Cause

EXIT_QUIETLY_FATAL = 1  # with which JAX ends a process that has lost its coordination service; scripts use it too
# Words of an error that another rank's end leaves behind; JAX raises it as RuntimeError, and as ValueError too.
COMMUNICATION = re.compile(
    r"AbsentError|gloo|nccl|closed by peer|reset by peer|socket closed|coordination.?service", re.IGNORECASE
)
# What may be that, or may be the rank's own.
DOUBTFUL = re.compile(
    r"(?:\w+\.)*(?:(?:Jax|Xla)RuntimeError(?!: (?:RESOURCE_EXHAUSTED|INVALID_ARGUMENT))"
    r"|TimeoutError|Connection\w*Error|BrokenPipeError)\b"
)


def is_of_communication(error: Mapping[str, Any]) -> bool:
    """Whether a rank has surely failed to reach another, or has raised something else because of that."""
    return any(COMMUNICATION.search(text) for text in (error["type"], error["message"], *_raised(error)))


def explained_by_a_loss(ends: Sequence[RankEnd]) -> bool:
    """Whether a host that does not answer could explain all these ends; else there is a cause that does not need it.

    Args:
        ends: of ranks on other hosts.
    """
    return bool(ends) and all(_could_follow(end) for end in ends)


def _could_follow(end: RankEnd) -> bool:
    if end.error is not None:
        compared = end.error.get("cause", Cause.FAILURE) != Cause.FAILURE
        doubtful = any(DOUBTFUL.match(line) for line in _raised(end.error))
        return not compared and (doubtful or is_of_communication(end.error))
    return end.lost is not None or end.abandoned or end.exit_code == EXIT_QUIETLY_FATAL


def _raised(error: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a traceback that tell exceptions, not code."""
    return (line for line in error["traceback"].splitlines() if not line.startswith(" "))
