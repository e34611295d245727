"""The copy of our packages that a job runs: digested, packed, and unpacked on each host once per digest."""

import dataclasses
import hashlib
import io
import os
import zipfile
from pathlib import Path

from launcher.whole_folder import made_whole

PACKAGES = ("launcher", "cluster", "workloads")
_LEFT_OUT = {"__pycache__", ".mypy_cache", ".ruff_cache"}
_LEFT_OUT_SUFFIXES = {".pyc", ".lock"}  # only a client makes environments, and their locks are most of the bytes


@dataclasses.dataclass(frozen=True)
class CodeFile:
    """One file: path relative to the root (POSIX), whether it is executable, content."""

    path: str
    executable: bool
    data: bytes


def source_root() -> Path:
    """The folder that holds our packages: a checkout, or site-packages."""
    return Path(__file__).resolve().parent.parent


def read_code(root: Path) -> list[CodeFile]:
    """All files of our packages below `root`, sorted by path, caches and lock files left out."""
    files = []
    for package in PACKAGES:
        for path in (root / package).rglob("*"):
            if path.is_file() and not _LEFT_OUT.intersection(path.parts) and path.suffix not in _LEFT_OUT_SUFFIXES:
                files.append(_read(root, path))
    return sorted(files, key=lambda file: file.path)


def digest_code(files: list[CodeFile]) -> str:
    """sha256 over relative paths, modes and bytes, in the order of the paths."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{int(file.executable)}\0{len(file.data)}\0".encode())
        digest.update(file.data)
    return digest.hexdigest()


def pack(files: list[CodeFile]) -> bytes:
    """A zip archive of the files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in files:
            info = zipfile.ZipInfo(file.path)
            info.external_attr = (0o755 if file.executable else 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, file.data)
    return buffer.getvalue()


def unpack(archive: bytes, folder: Path, expected_digest: str) -> None:
    """Writes the files into `folder`, which appears complete or not at all.

    Raises:
        ValueError: the digest of what arrived is not the expected one.
        zipfile.BadZipFile, zlib.error: it is no archive any more.
    """
    if folder.exists():
        return
    with made_whole(folder) as partial:
        with zipfile.ZipFile(io.BytesIO(archive)) as source:
            for info in source.infolist():
                path = Path(source.extract(info, partial))
                path.chmod(info.external_attr >> 16)
        found = digest_code(read_code(partial))
        if found != expected_digest:
            raise ValueError(f"the code that arrived has digest {found}, expected {expected_digest}")


def _read(root: Path, path: Path) -> CodeFile:
    return CodeFile(path.relative_to(root).as_posix(), os.access(path, os.X_OK), path.read_bytes())
