"""What a command wrote into its folder, and what of it comes back."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from launcher.command_process import unpack_folder
from launcher.user_folder import pack_folder
from launcher.written_files import bring_back, note_unpacked


def unpacked(folder: Path) -> Path:
    """A copy of a user's folder as a command finds it."""
    project = folder / "project"
    (project / "src").mkdir(parents=True)
    for name in ("a.txt", "src/b.txt"):
        (project / name).write_text("as it was")
    (folder / "packed").write_bytes(pack_folder(project))
    unpack_folder(folder / "packed", folder / "work")
    note_unpacked(folder / "work")
    return folder / "work"


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_new_and_changed_files_come_back_and_others_do_not(tmp_path: Path) -> None:
    work, results = unpacked(tmp_path), tmp_path / "results"
    (work / "src" / "b.txt").write_text("changed")
    (work / "new").mkdir()
    (work / "new" / "c.txt").write_text("new")
    (work / "__pycache__").mkdir()
    (work / "__pycache__" / "m.pyc").write_text("of no use")
    (work / "link").symlink_to("/etc/passwd")
    assert bring_back(work, results) == []
    assert names(results) == {"src/b.txt", "new/c.txt"}


def test_what_was_left_on_purpose_stays_as_it_is(tmp_path: Path) -> None:
    work, results = unpacked(tmp_path), tmp_path / "results"
    results.mkdir()
    (results / "c.txt").write_text("on purpose")
    (work / "c.txt").write_text("another")
    assert bring_back(work, results) == []
    assert (results / "c.txt").read_text() == "on purpose"


def test_what_is_too_much_is_named(tmp_path: Path) -> None:
    work, results = unpacked(tmp_path), tmp_path / "results"
    for name, num_bytes in (("small", 10), ("large", 2000), ("middle", 90)):
        (work / name).write_bytes(b"x" * num_bytes)
    (line,) = bring_back(work, results, limit_bytes=100)
    assert names(results) == {"small", "middle"}
    assert ": large (2" in line and "SPMD_LAUNCH_STORAGE_PATH" in line


def test_copies_that_have_the_times_of_what_was_shipped_come_back_too(tmp_path: Path) -> None:
    work, results = unpacked(tmp_path), tmp_path / "results"
    (work / "sub").mkdir()
    shutil.copy2(work / "a.txt", work / "sub" / "copy.txt")
    (work / "src" / "b.txt").rename(work / "moved.txt")
    (work / "longer").write_text("longer than it was")
    shutil.copystat(work / "a.txt", work / "longer")
    (work / "longer").rename(work / "a.txt")
    assert bring_back(work, results) == []
    assert names(results) == {"sub/copy.txt", "moved.txt", "a.txt"}


def test_a_file_that_cannot_come_is_told_and_the_others_come(tmp_path: Path) -> None:
    work, results = unpacked(tmp_path), tmp_path / "results"
    results.mkdir()
    (results / "m").write_text("a file, left on purpose")
    (work / "m").mkdir()
    for name in ("m/x", "m/y", "z"):
        (work / name).write_text(name)
    (line,) = bring_back(work, results)
    assert "m/x (" in line and "m/y (" in line and "xists" in line
    assert names(results) == {"m", "z"}


def test_a_file_that_goes_away_in_the_meantime_is_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, results = unpacked(tmp_path), tmp_path / "results"
    for name in ("gone", "stays"):
        (work / name).write_text(name)
    walk = os.walk

    def walk_while_it_goes(top: Path, **options: Any) -> object:
        for found in walk(top, **options):
            (work / "gone").unlink(missing_ok=True)  # listed, and then removed by a process of the command's
            yield found

    monkeypatch.setattr(os, "walk", walk_while_it_goes)
    assert bring_back(work, results) == []
    assert names(results) == {"stays"}


def test_a_file_that_cannot_be_moved_is_copied(tmp_path: Path) -> None:
    work = unpacked(tmp_path)
    (work / "x").write_text("x")
    with tempfile.TemporaryDirectory(prefix="slt-", dir="/dev/shm") as folder:
        if Path(folder).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is no disk of its own here")
        assert bring_back(work, Path(folder) / "results") == []
        assert names(Path(folder) / "results") == {"x"}
