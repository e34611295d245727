"""Files that live as long as a command, and their digests."""

import hashlib
import tempfile
from pathlib import Path

_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def temporary_folder() -> Path:
    """A new folder that lives as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="spmd-launch-")
    _FOLDERS.append(folder)
    return Path(folder.name)


def sha256_of(path: Path) -> str:
    """Of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
