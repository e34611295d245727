"""How much memory a process has needed, and how much there is: what a person asks when it ran out."""

import contextlib
import os
import re
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Limits of the control group that a container's processes are in: version 2, version 1.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


# What XLA says when a device cannot allocate. The same status has other meanings, as of a message that is too long.
_DEVICE_IS_FULL = re.compile(r"\bRESOURCE_EXHAUSTED: .*(memory|allocat)", re.IGNORECASE | re.DOTALL)


def memory_that_ran_out(error: BaseException, peak_bytes: int) -> dict[str, Any] | None:
    """`launcher.job.RankEnd.memory` of an error that says so; None: it is another one.

    Args:
        error: that was raised.
        peak_bytes: the most memory that this process has had; 0: not known.
    """
    if not isinstance(error, MemoryError):
        if not isinstance(error, RuntimeError | ValueError) or not _DEVICE_IS_FULL.search(str(error)):
            return None
        bridge = sys.modules.get("jax._src.xla_bridge")  # whoever has not brought up the devices must not here
        devices = sys.modules["jax"].local_devices() if bridge and bridge.backends_are_initialized() else ()
        if (fullest := fullest_device(devices)) is not None:
            return fullest
    return {"peak_bytes": peak_bytes, "host_bytes": host_bytes()}


def fullest_device(devices: Sequence[Any]) -> dict[str, Any] | None:
    """The most that one of JAX's devices has held, of what it has: 0 where it does not say; None: all use the host's.

    Args:
        devices: of this process.
    """
    found = []
    for device in devices:
        stats = None
        with contextlib.suppress(RuntimeError):  # of a device that keeps none
            stats = device.memory_stats()
        known = {"peak_bytes": "peak_bytes_in_use", "device_bytes": "bytes_limit"}
        if device.platform != "cpu":
            sizes = {name: int((stats or {}).get(key, 0)) for name, key in known.items()}
            found.append({"device": device.device_kind, **sizes})
    return max(found, key=lambda memory: int(memory["peak_bytes"]), default=None)


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
