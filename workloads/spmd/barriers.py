"""`barrier`: a place that all processes must reach."""

import time

from workloads.exchange import AbsentError
from workloads.spmd.processes import TIMEOUT_S, barriers, host_name


def barrier(name: str, timeout_s: float = TIMEOUT_S) -> None:
    """Returns when every process is at the barrier of this name; no device takes part.

        if jax.process_index() == 0:
            download(corpus)
        spmd.barrier("corpus is there", timeout_s=600)
        data = load(corpus)

    A name may be used again: the third time meets the third time of the others, so that a process which comes too late
    passes at once, and the next barrier holds for all.

    Args:
        name: equal on all processes.
        timeout_s: how long to wait for the slowest; with 0 all must be there already.

    Raises:
        TimeoutError: naming the processes that did not come, and their hosts where they have been at a barrier before;
            or the coordination service is gone.
    """
    state = barriers()
    meeting = state.meet(name)
    start = time.monotonic()
    try:
        hosts = meeting.all_gather("host", host_name(), timeout_s)
    except AbsentError as error:
        if not error.ranks:
            raise
        missing = ", ".join(
            f"rank {rank}" + (f" ({state.hosts[rank]})" if rank in state.hosts else "") for rank in error.ranks
        )
        raise AbsentError(
            f"barrier {name!r}: rank {meeting.rank} on {host_name()} waited {time.monotonic() - start:.1f} s for "
            f"{missing}, which did not come; its log tells where it is",
            error.ranks,
        ) from error
    state.passed(meeting, hosts)
