"""Could ranks have ended so because another host was lost? A pure function of how they ended."""

import re
from collections.abc import Sequence

from launcher.job import RankEnd
from launcher.recovery import Cause

EXIT_QUIETLY_FATAL = 1  # with which JAX ends a process that has lost its coordination service; scripts use it too
# What a survivor's collective, exchange or connection raises, as a line of a traceback names it.
OF_A_PEER = re.compile(
    r"^(?:\w+\.)*(?:(?:Jax|Xla)RuntimeError(?!: (?:RESOURCE_EXHAUSTED|INVALID_ARGUMENT))"
    r"|AbsentError|TimeoutError|Connection\w*Error|BrokenPipeError)\b"
    r"|^\S.*(?:(?i:gloo|nccl)|closed by peer|reset by peer)",
    re.MULTILINE,
)


def explained_by_a_loss(ends: Sequence[RankEnd]) -> bool:
    """Whether a host that does not answer explains all these ends; else there is a cause that does not need it.

    Args:
        ends: of ranks on other hosts.
    """
    return bool(ends) and all(_could_follow(end) for end in ends)


def _could_follow(end: RankEnd) -> bool:
    if end.error is not None:
        compared = end.error.get("cause", Cause.FAILURE) != Cause.FAILURE
        return not compared and OF_A_PEER.search(end.error["traceback"]) is not None
    return end.lost is not None or end.abandoned or end.exit_code == EXIT_QUIETLY_FATAL
