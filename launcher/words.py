"""Numbers and lists as people read them."""

import os
import re
from collections.abc import Mapping
from pathlib import PurePath

BREAKS_LINES = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def waits_for(holders: Mapping[str, str]) -> str:
    """`waits for hosts (a by job-1, b is lost)`.

    Args:
        holders: `{host: job that holds it}`, '' for one that is lost.
    """
    held = ", ".join(f"{host} by {job}" if job else f"{host} is lost" for host, job in holders.items())
    return f"waits for hosts ({held})" if held else "waits for hosts"


def number_of_bytes(count: float) -> str:
    """`512 B`, `3.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def file_name(path: PurePath | str) -> str:
    """A file's name as one line of text that can be written anywhere, whatever bytes it has."""
    return BREAKS_LINES.sub("\ufffd", os.fsencode(path).decode(errors="replace"))
