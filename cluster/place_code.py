"""Puts the copy of our packages in its place on a machine, and goes on with it.

This file is also sent as it is to machines that have nothing of ours yet, and run there by `python -c`: it holds to the
standard library, and to Python 3.11.
"""

import contextlib
import dataclasses
import io
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Code:
    """Our packages, packed.

    Attributes:
        digest: of their content.
        archive: a zip file.
    """

    digest: str
    archive: bytes

    def folder(self, cluster: Path) -> Path:
        """Where it lies on a machine, below the cluster's folder there."""
        return cluster / "code" / self.digest

    def place(self, cluster: Path) -> None:
        """Unpacks it, and keeps the archive for the hosts that will want it."""
        cluster.mkdir(parents=True, exist_ok=True, mode=0o700)
        (cluster / "blobs").mkdir(exist_ok=True)
        (cluster / "blobs" / self.digest).write_bytes(self.archive)
        target = self.folder(cluster)
        if target.exists():
            return
        target.parent.mkdir(exist_ok=True)
        partial = target.with_name(f".{self.digest}.{os.getpid()}")
        try:
            with zipfile.ZipFile(io.BytesIO(self.archive)) as source:
                for info in source.infolist():
                    Path(source.extract(info, partial)).chmod(info.external_attr >> 16)
            with contextlib.suppress(OSError):  # another process was first with the same content
                partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def main() -> None:
    """Reads a line of JSON and the archive from standard input, then becomes the command, which reads what follows.

    The line: `home`, our folder here; `cluster`, its name; `digest` and `num_bytes` of the archive; `environment`,
    variables; `then`, arguments for this Python.
    """
    header = json.loads(_read_line())
    cluster = Path(header["home"]) / "clusters" / header["cluster"]
    code = Code(header["digest"], _read(header["num_bytes"]))
    Path(header["home"]).mkdir(parents=True, exist_ok=True)
    Path(header["home"]).chmod(0o700)  # whoever has made it: parents that `mkdir` makes are open to all
    code.place(cluster)
    own = {"PYTHONPATH": str(code.folder(cluster)), "SPMD_LAUNCH_HOME": header["home"]}
    environment = os.environ | header["environment"] | own
    os.chdir(cluster)
    os.execve(sys.executable, [sys.executable, *header["then"]], environment)


def _read_line() -> bytes:
    """Byte by byte: what follows the line belongs to somebody else."""
    line = b""
    while not line.endswith(b"\n"):
        line += _read(1)
    return line


def _read(num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        piece = os.read(0, min(num_bytes - len(data), 1 << 20))
        if not piece:
            raise SystemExit("the connection ended before all the code was here")
        data += piece
    return bytes(data)


if __name__ == "__main__":
    main()
