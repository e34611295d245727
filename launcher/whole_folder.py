"""A folder that appears complete or not at all, however many make it at once from the same content."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """Yields a folder of the caller's own to fill, which gets its name at the end; of several, the first one's stays.

    Args:
        folder: not there yet, maybe; the one that holds it is.

    Raises:
        OSError: it cannot have its name, and nobody else has made it.
    """
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield partial
        try:
            partial.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
