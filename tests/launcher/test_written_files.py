"""What a command wrote into its folder, and what of it comes back."""

from pathlib import Path

from launcher.command_process import unpack_folder
from launcher.user_folder import pack_folder
from launcher.written_files import bring_back


def unpacked(folder: Path) -> Path:
    """A copy of a user's folder as a command finds it."""
    project = folder / "project"
    (project / "src").mkdir(parents=True)
    for name in ("a.txt", "src/b.txt"):
        (project / name).write_text("as it was")
    (folder / "packed").write_bytes(pack_folder(project))
    unpack_folder(folder / "packed", folder / "work")
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
