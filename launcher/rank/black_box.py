"""The last launches of a rank, in a small file that outlives it: a crash in a collective leaves no time to tell.

The file is mapped into memory, so that a launch costs microseconds and what was written survives the process's death.
"""

import json
import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SIZE = 8192
HEADER = struct.Struct("<I")
NUM_RUNS = 16


class BlackBox:
    """The rank's side; `read_black_box` is the agent's.

    Args:
        path: made anew.
    """

    def __init__(self, path: Path):
        path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)

    def write(self, count: int, digest: str, runs: Sequence[Sequence[object]]) -> None:
        """Replaces what is kept.

        Args:
            count: launches so far.
            digest: rolling hash over them.
            runs: the last of them, as `[entry, times in a row]`; the newest `NUM_RUNS` are kept.
        """
        kept = [list(run) for run in runs[-NUM_RUNS:]]
        data = json.dumps({"launches": count, "launch_hash": digest, "tail": kept}).encode()
        while len(data) > SIZE - HEADER.size:  # entries with long names
            kept = kept[1:]
            data = json.dumps({"launches": count, "launch_hash": digest, "tail": kept}).encode()
        self._map[: HEADER.size] = HEADER.pack(0)  # whoever reads a half-written one finds nothing
        self._map[HEADER.size : HEADER.size + len(data)] = data
        self._map[: HEADER.size] = HEADER.pack(len(data))


def read_black_box(path: Path) -> dict[str, Any] | None:
    """What a rank has launched, dead or alive; None if it has launched nothing, or writes at this moment."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    (length,) = HEADER.unpack_from(data)
    if not length:
        return None
    found: dict[str, Any] = json.loads(data[HEADER.size : HEADER.size + length])
    return found
