"""The shipped code: one digest for one content, and a copy that is whole or not there."""

import io
import os
import zipfile
import zlib
from pathlib import Path

import pytest

from launcher.code_copy import digest_code, pack, read_code, source_root, unpack


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in ("launcher/__init__.py", "cluster/a.py", "workloads/deep/er/b.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")
    (root / "README.md").write_text("not shipped\n")
    (root / "cluster" / "hosts.lock").write_text("not shipped\n")
    (root / "tests").mkdir()
    (root / "tests" / "test_a.py").write_text("not shipped\n")
    return root


def _digest(root: Path) -> str:
    return digest_code(read_code(root))


def test_what_is_shipped(root: Path) -> None:
    assert [file.path for file in read_code(root)] == ["cluster/a.py", "launcher/__init__.py", "workloads/deep/er/b.py"]


def test_caches_do_not_count(root: Path) -> None:
    before = _digest(root)
    for name in ("launcher/__pycache__/x.cpython-311.pyc", "cluster/old.pyc", "workloads/.mypy_cache/x.json"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"cache")
    assert _digest(root) == before


def test_content_mode_and_path_count(root: Path) -> None:
    digests = [_digest(root)]
    (root / "cluster" / "a.py").write_text("# another\n")
    digests.append(_digest(root))
    (root / "cluster" / "a.py").chmod(0o755)
    digests.append(_digest(root))
    (root / "cluster" / "a.py").rename(root / "cluster" / "c.py")
    digests.append(_digest(root))
    assert len(set(digests)) == len(digests)


def test_bytes_that_move_between_files_count(root: Path) -> None:
    (root / "cluster" / "a.py").write_bytes(b"xy")
    (root / "cluster" / "b.py").write_bytes(b"z")
    before = _digest(root)
    (root / "cluster" / "a.py").write_bytes(b"x")
    (root / "cluster" / "b.py").write_bytes(b"yz")
    assert _digest(root) != before


def test_a_copy_is_equal(root: Path, tmp_path: Path) -> None:
    (root / "launcher" / "tool").write_bytes(os.urandom(1000))
    (root / "launcher" / "tool").chmod(0o755)
    files = read_code(root)
    folder = tmp_path / "copy"
    unpack(pack(files), folder, digest_code(files))
    assert read_code(folder) == files
    assert os.access(folder / "launcher" / "tool", os.X_OK)
    assert not os.access(folder / "cluster" / "a.py", os.X_OK)


def test_a_second_copy_changes_nothing(root: Path, tmp_path: Path) -> None:
    files = read_code(root)
    folder = tmp_path / "copy"
    unpack(pack(files), folder, digest_code(files))
    inode = folder.stat().st_ino
    unpack(pack(files), folder, digest_code(files))
    assert folder.stat().st_ino == inode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "root"]


def test_damaged_code_is_refused_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    files = read_code(root)
    with pytest.raises(ValueError, match=r"has digest .*, expected 0000"):
        unpack(pack(files[1:]), tmp_path / "copy", "0" * 64)
    archive = bytearray(pack(files))
    archive[30 + len(files[0].path) + 4] ^= 1  # in the first file's data, behind its header and name
    with pytest.raises((ValueError, zipfile.BadZipFile, zlib.error)):
        unpack(bytes(archive), tmp_path / "copy", digest_code(files))
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_our_own_code_is_small_and_whole() -> None:
    files = read_code(source_root())
    paths = {file.path for file in files}
    assert {"launcher/rank/main.py", "cluster/spec.py", "workloads/registry.py"} <= paths
    archive = pack(files)
    assert len(archive) < 2**20
    assert {info.filename for info in zipfile.ZipFile(io.BytesIO(archive)).infolist()} == paths
