"""The user's folder as it travels to the hosts: what Git does not ignore; equal files are packed into equal bytes."""

import gzip
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import UserError
from launcher.words import number_of_bytes

NAME = "folder.tar.gz"
LIMIT_BYTES = 100 * 2**20
NUM_NAMED = 5
NEVER = {".git", "__pycache__", "node_modules"}


def pack_folder(folder: Path, limit_bytes: int = LIMIT_BYTES, paths: Sequence[str] | None = None) -> bytes:
    """A gzipped tar archive of a folder, without what Git ignores, caches and virtual environments.

    Args:
        folder: the user's.
        limit_bytes: of all files, not compressed.
        paths: of `travelling_files`, where they are known already.

    Raises:
        UserError: it is larger; with the largest files, and what to do.
    """
    paths = travelling_files(folder) if paths is None else paths
    sizes = {path: (folder / path).lstat().st_size for path in paths}
    if sum(sizes.values()) > limit_bytes:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:NUM_NAMED]
        named = ", ".join(f"{path} ({number_of_bytes(sizes[path])})" for path in largest)
        raise UserError(
            f"{folder} has {number_of_bytes(sum(sizes.values()))} to ship, at most {number_of_bytes(limit_bytes)} are "
            f"shipped; the largest: {named}. Name in .gitignore what the hosts do not need, and read data from where "
            f"they can reach it"
        )
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:  # fmt: skip
        for path in paths:
            _add(archive, folder, path)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, folder: Path, path: str) -> None:
    """One file; of a link that leads out of the folder what it leads to."""
    source = folder / path
    inside = source.resolve().is_relative_to(folder.resolve()) and not os.path.isabs(os.readlink(source)) \
        if source.is_symlink() else False  # fmt: skip
    info = archive.gettarinfo(str(source) if inside else str(source.resolve()), arcname=path)
    info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    if info.islnk():  # two names of one file: each is a file on the hosts
        info.type = tarfile.REGTYPE
        info.size = source.stat().st_size
    if info.isreg():
        with source.open("rb") as file:
            archive.addfile(info, file)
    else:
        archive.addfile(info)


def travelling_files(folder: Path) -> list[str]:
    """Paths of the files to ship, relative to the folder, sorted."""
    listed = _git_files(folder)
    found = _all_files(folder) if listed is None else listed
    environments = {path.parent for path in folder.rglob("pyvenv.cfg")}
    return sorted(
        path
        for path in found
        if not NEVER.intersection(Path(path).parts)
        and (folder / path).is_file()
        and not any((folder / path).is_relative_to(environment) for environment in environments)
    )


def _all_files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*")]


def _git_files(folder: Path) -> list[str] | None:
    """What Git has or would add; where the folder is in no repository, by its .gitignore; None: there is no Git."""
    if shutil.which("git") is None:
        return None
    ls = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(["git", "-C", str(folder), *ls], capture_output=True, check=False)
    if done.returncode:
        with tempfile.TemporaryDirectory(prefix="spmd-launch-") as empty:
            subprocess.run(["git", "init", "--quiet", "--bare", empty], capture_output=True, check=True)
            here = ["git", f"--git-dir={empty}", f"--work-tree={folder}", "-C", str(folder)]
            done = subprocess.run([*here, *ls], capture_output=True, check=True)
    return [os.fsdecode(path) for path in done.stdout.split(b"\0") if path]
