"""The launcher: ties clusters and workloads together.

The way of a job: `launcher.cli` -> `launcher.submission` -> `launcher.supervisor` (one actor a cluster) ->
`launcher.agent` (one actor a host) -> `launcher.rank` (one process a host and attempt, which never imports Ray) -> a
workload's `run`.

`launcher.connect` is the same from Python, see `launcher.session`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.session.clusters import connect
    from launcher.session.errors import GangEndedError, GangError

__all__ = ["GangEndedError", "GangError", "connect"]


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is: commands must start fast, and ranks need none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from launcher.session import clusters, errors

    return getattr(clusters if name == "connect" else errors, name)
