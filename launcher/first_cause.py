"""What happened first: a pure function of how the ranks ended."""

import dataclasses
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.aftermath import EXIT_QUIETLY_FATAL, is_of_communication
from launcher.job import RankEnd
from launcher.recovery import Cause
from workloads.words import first_of

# With these an operating system ends processes when its machine is shut down.
SHUTDOWN = (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
MAX_LISTED = 8  # ranks in a sentence


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstCause:
    """Why an attempt ended.

    Attributes:
        sentence: what happened first, on which host and rank, during what.
        details: the traceback, if there is one.
        cause: what it means for the next attempt.
        suspects: hosts that a vote of copies names.
    """

    sentence: str
    details: str = ""
    cause: Cause = Cause.FAILURE
    suspects: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.sentence}\n\n{self.details}" if self.details else self.sentence


def first_cause(
    ends: Sequence[RankEnd], leaving: Mapping[str, str] | None = None, hosts: Sequence[str] = ()
) -> FirstCause:
    """The cause of a failed attempt.

    What ranks say of each other (different programs, diverged copies) comes first: it explains the rest. Then a lost
    host, or a process that a signal or a plain exit ended; then a Python error of the rank's own, an abort in C++, and
    exit code 1, with which scripts end that have caught an error: the end of a peer may have led to each. What it
    surely leaves behind comes last, and may be heard first: the survivors' collectives raise, and JAX ends the
    survivors when it loses process 0. Among equals the first to be known counts. Equal errors of several ranks are one
    message with a list.

    Args:
        ends: every rank that ended badly, at least one.
        leaving: `{host: notice}`: hosts that were to be lost; a rank that was killed there was lost with its host.
        hosts: of all ranks, in their order, where a rank that is waited for in vain is to be named with its host.
    """
    ends = [_as_lost(end, (leaving or {}).get(end.host, "")) for end in ends]
    first = min(ends, key=lambda end: (_severity(end), end.order))
    same = [end for end in ends if _kind(end) == _kind(first)]
    where = _places(same)
    during = f" during {first.phase!r}" if first.phase else ""
    if first.lost is not None:
        return FirstCause(sentence=f"{where} was lost{during}: {first.lost}", cause=Cause.PREEMPTED)
    if first.differs is not None:
        return FirstCause(sentence=f"ranks have launched different programs: {first.differs}", cause=Cause.REFUSED)
    if first.hung is not None:
        return FirstCause(sentence=f"{where} {first.hung}")
    if first.signal is not None:
        hint = _out_of_memory(same) if first.out_of_memory else _signal_hint(first)
        return FirstCause(sentence=f"{where} was killed by signal {_signal_name(first.signal)}{during}{hint}")
    if first.error is not None:
        error = first.error
        hint = _out_of_memory(same) if error["type"] == "MemoryError" or first.memory else ""
        message = f": {error['message']}" if error["message"] else ""
        cause = Cause(error.get("cause", Cause.FAILURE))
        return FirstCause(
            sentence=_absent(error, hosts)
            + f"{where} raised {error['type']}"
            + (f"{during}{hint}{message}" if "\n" in message else f"{message}{hint}{during}"),
            # What our own checks found their sentence tells; where in our code is of no use, and on record.
            details=error["traceback"].rstrip() if cause is Cause.FAILURE else "",
            cause=cause,
            suspects=tuple(error.get("suspects", ())),
        )
    words = f"; its last words: {first.last_words!r}" if first.last_words else "; see its log"
    return FirstCause(
        sentence=f"{where} ended with exit code {first.exit_code}{during}, without a Python exception{words}"
    )


def _as_lost(end: RankEnd, notice: str) -> RankEnd:
    if not notice:
        return end
    if end.lost is not None:
        return dataclasses.replace(end, lost=f"{end.lost}; {notice}")
    if end.signal in SHUTDOWN and not end.out_of_memory:
        killed = f"its process was killed by signal {_signal_name(end.signal)}"
        return dataclasses.replace(end, lost=f"{killed}; {notice}", signal=None)
    return end


def is_settled(ends: Sequence[RankEnd]) -> bool:
    """Whether one of these ends has led to the others, and follows from none that is still to be heard."""
    return any(_severity(end) <= 1 for end in ends)


def _severity(end: RankEnd) -> int:
    if end.differs is not None or (end.error or {}).get("cause", Cause.FAILURE) != Cause.FAILURE:
        return -1  # found by comparing the ranks
    if end.lost is not None or end.hung is not None:
        return 0
    if end.error is not None:
        return 5 if is_of_communication(end.error) else 2
    if end.abandoned:
        return 6
    if end.signal == signal.SIGABRT:
        return 3
    return 4 if end.exit_code == EXIT_QUIETLY_FATAL else 1


def _absent(error: Mapping[str, Any], hosts: Sequence[str]) -> str:
    """Who is missing, for the beginning of what the rank says that has waited for them; '' if it did not."""
    absent = [rank for rank in error.get("ranks", ()) if rank < len(hosts)]
    if not absent:
        return ""
    listed = first_of([f"{rank} on host {hosts[rank]}" for rank in absent], MAX_LISTED)
    return f"rank{'s' if len(absent) > 1 else ''} {listed} did not come where the others waited: "


def _kind(end: RankEnd) -> tuple[object, ...]:
    error = (end.error["type"], end.error["message"]) if end.error else None
    return (end.lost, end.hung, end.differs, end.signal, end.abandoned, error, end.exit_code)


def _places(ends: Sequence[RankEnd]) -> str:
    ranks = sorted((end.rank, end.host) for end in ends)
    rank, host = ranks[0]
    if len(ranks) == 1:
        return f"rank {rank} on host {host}"
    listed = ", ".join(f"{rank} on {host}" for rank, host in ranks)
    return f"ranks {listed} each" if len(ranks) <= MAX_LISTED else f"{len(ranks)} ranks (first: {rank} on {host}) each"


def _out_of_memory(ends: Sequence[RankEnd]) -> str:
    """What was used of what there was (of the process or device that used most), and what to do."""
    largest = max((end.memory for end in ends if end.memory), key=lambda memory: memory["peak_bytes"], default=None)
    used = ""
    if largest and "device" in largest:
        used = " on a device"
        if largest["device_bytes"]:
            peak, whole = _gib(largest["peak_bytes"]), _gib(largest["device_bytes"])
            used += f" ({largest['device']}), with {peak} used of the {whole} that there are for it"
    elif largest and largest["peak_bytes"]:
        peak, host = _gib(largest["peak_bytes"]), _gib(largest["host_bytes"])
        used = f", with {peak} used by the process, on a host that has {host}"
    return f": memory ran out{used}; use smaller batches or fewer chains a device, or more hosts"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:  # a real-time signal between the first and the last has no name
        return f"{number}"


def _signal_hint(end: RankEnd) -> str:
    if end.signal == signal.SIGKILL and end.out_of_memory is None:
        return ": by somebody's hand, or by the kernel for want of memory, which does not say so on this host"
    if end.signal == signal.SIGKILL:
        return ": by somebody's hand, for the kernel has killed nothing for want of memory meanwhile"
    if end.signal == signal.SIGABRT:
        abandoned = ": by JAX, which has lost process 0 or its other peers"
        return abandoned if end.abandoned else ": an assertion or damaged memory in C++ code; see its log"
    if end.signal in CRASHES:
        return ": a crash in C++ code; its log has the Python stack"
    return ""
