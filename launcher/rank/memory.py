"""How much memory a process has needed, and how much there is: what a person asks when it ran out."""

import os
import resource
import sys
from pathlib import Path

# Limits of the control group that a container's processes are in: version 2, version 1.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def peak_bytes(usage: resource.struct_rusage) -> int:
    """The most memory that a process has had resident, in bytes; the kernel still knows it when the process is dead."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def host_bytes() -> int:
    """This host's memory, or what its container may take of it, in bytes."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [_limit(Path(path)) for path in _LIMITS]
    return min([physical, *(limit for limit in limits if limit is not None)])


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # "max": no limit
