"""Damages a checkpoint, for the fault that is called so: in the largest file, where hardly any bit is of no account."""

import random
from pathlib import Path

DAMAGED_BYTES = 16  # one in five bytes of such a file carries nothing: a single flip there would harm nobody


def damage(folder: Path, draw: random.Random) -> Path:
    """Flips bits in the largest file of a step's folder; returns its path."""
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    for place in draw.sample(range(len(data)), min(DAMAGED_BYTES, len(data))):
        data[place] ^= 1 << draw.randrange(8)
    largest.write_bytes(data)
    return largest
