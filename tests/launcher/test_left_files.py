"""The files that a rank has left on its host, whatever they are: real ones, on a disk."""

import os
import socket
from pathlib import Path

import pytest

from launcher.left_files import list_files, read_piece, set_aside
from launcher.words import file_name

NO_MEMORY_THERE = Path("/proc/self/mem")  # of any user: its first byte cannot be read (EIO)


def test_what_is_no_file_is_named_and_hides_no_other(tmp_path: Path) -> None:
    output = tmp_path / "output"
    (output / "a").mkdir(parents=True)
    (output / "a" / "x").write_text("xx")
    (output / "z").write_text("")
    (output / "elsewhere").symlink_to("/usr")
    (output / "latest").symlink_to("a")
    (output / "nothing").symlink_to("gone")
    (output / "linked").symlink_to("a/x")
    (output / "round").symlink_to("round")
    os.mkfifo(output / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(output / "socket"))
        found = list_files(output)
    assert found.files == {"a/x": 2, "linked": 2, "z": 0}
    assert found.unreadable == {
        "elsewhere": "a link to a folder elsewhere",
        "nothing": "a link to nothing",
        "pipe": "a named pipe",
        "round": "a link to nothing",
        "socket": "a socket",
    }
    assert list_files(tmp_path / "absent") == list_files(tmp_path / "output" / "a" / "absent")


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_entered_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path / "file").touch()
    found = list_files(tmp_path)
    assert (found.files, found.unreadable) == ({"file": 0}, {"closed": "Permission denied"})


def test_a_piece_of_what_is_no_file_raises_at_once(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("0123456789")
    assert read_piece(tmp_path / "x", 3, 4) == b"3456"
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path / "pipe", "a named pipe"), (tmp_path, "a folder"), (NO_MEMORY_THERE, "Input/output")):
        with pytest.raises(OSError, match=why):
            read_piece(path, 0, 4)


def test_what_was_not_fetched_stays_and_nothing_else(tmp_path: Path) -> None:
    output, place = tmp_path / "attempts" / "output", tmp_path / "left" / "job.1.x"
    for name in ("results/deep/fetched", "results/deep/kept", "plots/fetched"):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text(name)
    assert set_aside(output, place, ["results/deep/fetched", "plots/fetched"]) == str(place)
    assert [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()] == ["results/deep/kept"]
    assert not output.exists() and not (place / "plots").exists()
    output.mkdir()
    assert set_aside(output, tmp_path / "left" / "job.2.x", ["gone meanwhile"]) == ""


def test_a_files_name_is_one_line_of_text() -> None:
    assert file_name(os.fsdecode(b"caf\xc3\xa9 \xff\n")) == "caf\u00e9 \ufffd\ufffd"
