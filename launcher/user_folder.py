"""The user's folder as it travels to the hosts: what Git does not ignore; equal files are packed into equal bytes."""

import gzip
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
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
        UserError: it is larger; with the largest files, and what to do. As `travelling_files` raises it.
    """
    paths = travelling_files(folder, limit_bytes) if paths is None else paths
    sizes = {path: 0 if _is_inner_link(folder, path) else (folder / path).stat().st_size for path in paths}
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
    """One file, or a link that stays one."""
    source = folder / path
    info = archive.gettarinfo(str(source if _is_inner_link(folder, path) else source.resolve()), arcname=path)
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


def _is_inner_link(folder: Path, path: str) -> bool:
    """Whether it is a link that leads to the same place in a copy of the folder; others travel as what they lead to."""
    source = folder / path
    if not source.is_symlink():
        return False
    place = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(source)))
    target = source.resolve()
    stays = not os.path.isabs(place) and place.split(os.sep)[0] != os.pardir
    return stays and target.is_relative_to(folder.resolve()) and target == (folder / place).resolve()


# -- what travels


def travelling_files(folder: Path, limit_bytes: int = LIMIT_BYTES) -> list[str]:
    """Paths to ship, relative to the folder, sorted: files, and links that lead to the same place in a copy of it.

    Args:
        folder: the user's.
        limit_bytes: of a folder elsewhere that a link leads to.

    Raises:
        UserError: a link leads to a folder that is larger, or that holds the link itself.
    """
    found = set(_files_of(folder, _listed(folder), (folder.resolve(),), limit_bytes))
    parents = {parent for path in found for parent in Path(path).parents}
    environments = {parent for parent in parents if _is_environment(folder / parent)}
    return sorted(
        path
        for path in found
        if not NEVER.intersection(Path(path).parts) and environments.isdisjoint(Path(path).parents)
    )


def _files_of(folder: Path, listed: Iterable[str], within: Sequence[Path], limit_bytes: int) -> Iterator[str]:
    """What is listed, and in the place of links to folders elsewhere and of repositories the files in them.

    Args:
        folder: the user's.
        listed: paths relative to it.
        within: folders that links have led to on the way, the user's first.
        limit_bytes: of what one link leads to.
    """
    for path in listed:
        source = folder / path
        if source.is_file() or (source.is_dir() and _is_inner_link(folder, path)):
            yield path
        elif not source.is_dir() or source.name in NEVER or _is_environment(source):
            continue
        elif source.is_symlink():
            target = source.resolve()
            if any(place.is_relative_to(target) for place in within):
                raise UserError(f"{path} is a link to {target}, in which it lies itself: name it in .gitignore")
            inner = target.is_relative_to(within[0])  # by an absolute path
            below = _below(path, _listed(source)) if inner else _within_limit(folder, path, limit_bytes)
            yield from _files_of(folder, below, (*within, target), limit_bytes)
        elif (source / ".git").exists():  # a submodule, or a repository that lies here; Git lists neither's files
            yield from _files_of(folder, _below(path, _listed(source)), within, limit_bytes)


def _within_limit(folder: Path, link: str, limit_bytes: int) -> Iterator[str]:
    """All files where a link leads; looks no further than the limit, as there may be a million of them."""
    num_bytes = 0
    for path in _below(link, _all_files(folder / link)):
        num_bytes += (folder / path).lstat().st_size
        if num_bytes > limit_bytes:
            raise UserError(
                f"{link} is a link to {(folder / link).resolve()}, which would travel and has more than the "
                f"{number_of_bytes(limit_bytes)} that are shipped: name it in .gitignore (a link is no folder there: "
                f"without a / at the end), and read data from where the hosts can reach it"
            )
        yield path


def _below(folder: str, paths: Iterable[str]) -> Iterator[str]:
    return (f"{folder}/{path}" for path in paths)


def _listed(folder: Path) -> Iterable[str]:
    found = _git_files(folder)
    return _all_files(folder) if found is None else found


def _all_files(folder: Path) -> Iterator[str]:
    """Whatever is no folder, links to folders too; without caches and environments."""
    for here, folders, names in os.walk(folder):
        inner = [name for name in folders if name not in NEVER and not _is_environment(Path(here, name))]
        links = [name for name in inner if Path(here, name).is_symlink()]
        folders[:] = inner
        for name in (*names, *links):
            yield Path(here, name).relative_to(folder).as_posix()


def _is_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").exists()


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
    return [os.fsdecode(path).rstrip("/") for path in done.stdout.split(b"\0") if path]
