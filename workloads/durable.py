"""Small files that are whole or not there, in a folder or on an object store. Imports no JAX."""

import os

from etils import epath


def as_path(storage: str) -> epath.Path:
    """The folder or URL (`gs://`, `s3://`) as a path; a local one is made absolute."""
    return epath.Path(storage) if "://" in storage else epath.Path(storage).expanduser().resolve()


def write_whole(path: epath.Path, content: str | bytes) -> None:
    """Puts a file in place at once: under a temporary name, synced, renamed. An object store does so by itself.

    Raises:
        OSError: the storage is full or refuses; the file is then as it was before.
    """
    data = content.encode() if isinstance(content, str) else content
    if "://" in str(path):
        path.write_bytes(data)
        return
    temporary = f"{path}.tmp"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)  # the name too
    finally:
        os.close(folder)
