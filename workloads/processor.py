"""Which processor a host has: XLA:CPU makes other code, and may give other last bits, on another. Imports no JAX."""

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """As Linux names the first core (`model name`); '' where it does not, as on ARM."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
