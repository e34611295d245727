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


def ship(folder: Path, target: Path) -> set[str]:
    """Packs a folder and unpacks it; paths of all that is then in the copy and is no folder, links with where to."""
    archive = target.with_suffix(".tar.gz")
    archive.write_bytes(pack_folder(folder))
    unpack_folder(archive, target)
    found = {path for path in target.rglob("*") if path.is_symlink() or not path.is_dir()}
    leads = {path: f" -> {path.readlink()}" if path.is_symlink() else "" for path in found}
    return {path.relative_to(target).as_posix() + leads[path] for path in found}


def test_links_to_folders_travel_as_links_inside_and_as_files_from_outside(tmp_path: Path) -> None:
    project, data = fill(tmp_path / "project"), fill(tmp_path / "data")
    (project / "data").joinpath("up").symlink_to("..")
    (project / "src").symlink_to("sub")
    (project / "whole").symlink_to(project / "sub")  # an absolute path, which hosts have not
    (project / "shared").symlink_to(tmp_path / "data")
    (project / "env2").symlink_to(project / "env")
    (data / "other").symlink_to("train.py")
    found = ship(project, tmp_path / "there")
    assert {"data/up -> ..", "src -> sub", "whole/z.txt"} <= found and "whole/y.txt" not in found
    assert {path for path in found if path.startswith("shared/")} == {
        *(f"shared/{path}" for path in TRAVELS), "shared/data/model.bin", "shared/out/log", "shared/sub/y.txt",
        "shared/other",
    }  # fmt: skip
    assert not [path for path in found if "env" in path]
    assert (tmp_path / "there" / "shared" / "other").read_text() == "print(1)"


@pytest.mark.parametrize("is_repository", [False, True])
def test_submodules_and_repositories_inside_travel_without_what_they_ignore(
    tmp_path: Path, is_repository: bool
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("")
    expected = {"train.py", *(f"nested/{path}" for path in TRAVELS)}
    if is_repository:
        library = fill(tmp_path / "library")
        for folder in (library, project):
            subprocess.run([*GIT, "init", "-q", str(folder)], check=True)
        subprocess.run([*GIT, "-C", str(library), "add", "."], check=True)
        subprocess.run([*GIT, "-C", str(library), "commit", "-qm", "x"], check=True)
        add = [*GIT, "-C", str(project), "-c", "protocol.file.allow=always", "submodule", "--quiet", "add"]
        subprocess.run([*add, str(library), "module"], check=True)
        subprocess.run([*add, str(library), "absent"], check=True)
        subprocess.run([*GIT, "-C", str(project), "submodule", "--quiet", "deinit", "-f", "absent"], check=True)
        (project / "module" / "new.py").write_text("")
        expected |= {".gitmodules", "module/new.py", *(f"module/{path}" for path in TRAVELS)}
    subprocess.run([*GIT, "init", "-q", str(fill(project / "nested"))], check=True)
    assert ship(project, tmp_path / "there") == expected


@pytest.mark.parametrize("target", [".", "..", "../beside"])
def test_a_link_that_has_no_end_is_refused_by_name(tmp_path: Path, target: str) -> None:
    project = tmp_path / "project"
    (tmp_path / "beside" / "deep").mkdir(parents=True)
    project.mkdir()
    (tmp_path / "beside" / "deep" / "back").symlink_to(tmp_path / "beside")
    (project / "link").symlink_to(target)
    if target == ".":
        assert ship(project, tmp_path / "there") == {"link -> ."}
        return
    with pytest.raises(UserError, match=r"is a link to .*, in which it lies itself: name it in \.gitignore"):
        travelling_files(project)


def test_what_a_link_leads_to_counts_and_is_not_read_where_it_is_too_much(tmp_path: Path) -> None:
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    data.mkdir()
    with (data / "huge.bin").open("wb") as file:
        file.truncate(2**30)  # a hole: nothing is on the disk
    (project / "data.bin").symlink_to(data / "huge.bin")
    with pytest.raises(UserError, match=r"the largest: data.bin \(1\.1 GB\)"):
        pack_folder(project)
    (project / "data.bin").unlink()
    (project / "data").symlink_to(data)
    with pytest.raises(UserError, match=r"data is a link to .*/data, .* without a / at the end"):
        travelling_files(project)
