"""What of a user's folder travels, and that equal folders are equal bytes."""

import os
import subprocess
from pathlib import Path

import pytest

from launcher.command_process import unpack_folder
from launcher.errors import UserError
from launcher.user_folder import pack_folder, travelling_files

GIT = ["git", "-c", "user.email=a@b", "-c", "user.name=a", "-c", "init.defaultBranch=main"]


def fill(folder: Path) -> Path:
    for name, text in {
        ".gitignore": "*.bin\n/out/\n", "train.py": "print(1)", "data/x.txt": "x", "data/model.bin": "m",
        "out/log": "l",
        "__pycache__/a.pyc": "c", "env/pyvenv.cfg": "home = /", "env/lib/big.py": "b", "sub/.gitignore": "y.txt\n",
        "sub/y.txt": "y", "sub/z.txt": "z",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


TRAVELS = [".gitignore", "data/x.txt", "sub/.gitignore", "sub/z.txt", "train.py"]


def test_what_git_ignores_stays_in_a_repository_and_out_of_one(tmp_path: Path) -> None:
    folder = fill(tmp_path / "project")
    assert travelling_files(folder) == TRAVELS
    subprocess.run([*GIT, "init", "-q", str(folder)], check=True)
    assert travelling_files(folder) == TRAVELS
    subprocess.run([*GIT, "-C", str(folder), "add", "train.py"], check=True)
    subprocess.run([*GIT, "-C", str(folder), "commit", "-qm", "x"], check=True)
    (folder / "train.py").unlink()  # Git still has it; the folder has not
    assert travelling_files(folder) == [path for path in TRAVELS if path != "train.py"]
    assert travelling_files(folder / "sub") == [".gitignore", "z.txt"]


def test_equal_folders_are_equal_bytes_whenever_and_by_whomever_written(tmp_path: Path) -> None:
    one, other = fill(tmp_path / "one"), fill(tmp_path / "other")
    os.utime(other / "train.py", (1, 1))
    (other / "train.py").chmod(0o600)
    assert pack_folder(one) == pack_folder(other)
    (other / "train.py").chmod(0o755)
    assert pack_folder(one) != pack_folder(other)


def test_a_folder_is_unpacked_as_it_was_with_links_and_modes(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "again.sh").hardlink_to(folder / "run.sh")
    (folder / "inside").symlink_to("run.sh")
    (tmp_path / "outside.txt").write_text("from outside")
    (folder / "link").symlink_to(tmp_path / "outside.txt")
    (folder / "dangling").symlink_to("nowhere")
    archive = tmp_path / "folder.tar.gz"
    archive.write_bytes(pack_folder(folder))
    unpack_folder(archive, tmp_path / "there")
    there = tmp_path / "there"
    assert sorted(path.name for path in there.iterdir()) == ["again.sh", "inside", "link", "run.sh"]
    assert os.access(there / "run.sh", os.X_OK) and (there / "again.sh").read_text() == "#!/bin/sh\n"
    assert (there / "inside").is_symlink() and (there / "link").read_text() == "from outside"
    assert not (there / "link").is_symlink()


def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"file{number}.dat").write_bytes(bytes(1000 * (number + 1)))
    with pytest.raises(UserError, match=r"36\.0 kB to ship.*file7\.dat \(8\.0 kB\).*\.gitignore"):
        pack_folder(tmp_path, limit_bytes=20_000)
    assert pack_folder(tmp_path, limit_bytes=36_000)
