"""What of a requirements file goes to the hosts, and what is refused before anything is asked."""

from pathlib import Path

import pytest

from launcher.errors import UserError
from launcher.requirements import read_requirements


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return folder / "main.txt"


def test_includes_are_put_in_their_places_and_comments_left_out(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    main = write(
        tmp_path,
        main="# mine\n--extra-index-url https://pypi.example.org/simple\na==1  # why\n\n-r more/base.txt\n"
        "-c bounds.txt\nb @ https://host/b.whl#sha256=1\n",
        bounds="c<3\n",
    )
    (tmp_path / "more" / "base.txt").write_text("--requirement=deeper.txt\nd; python_version < '4'\n")
    (tmp_path / "more" / "deeper.txt").write_text("e==1 \\\n    --hash=sha256:00\n")
    read = read_requirements(main)
    assert read.lines == [
        "--extra-index-url https://pypi.example.org/simple", "a==1", "e==1      --hash=sha256:00",
        "d; python_version < '4'", "b @ https://host/b.whl#sha256=1",
    ]  # fmt: skip
    assert read.constraints == ["c<3"] and read.hashed and read.name == "main.txt"
    assert read.options == ["--extra-index-url https://pypi.example.org/simple"]


@pytest.mark.parametrize(
    "line",
    ["-e .", "./pkg", "../pkg[extra]", ".", "--editable git+https://host/x", "--find-links wheels", "-f ./wheels"],
)
def test_a_path_of_this_machine_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserError, match="is a path of this machine"):
        read_requirements(write(tmp_path, main=f"a\n{line}\n"))


@pytest.mark.parametrize(
    "line", ["--find-links /nfs/wheels", "-f https://host/w", "--find-links=file:///w", "/nfs/a-1.0.whl", "--no-index"]
)
def test_a_place_that_hosts_may_have_is_left_to_them(tmp_path: Path, line: str) -> None:
    assert read_requirements(write(tmp_path, main=line)).lines == [line]


@pytest.mark.parametrize(
    "line", ["--index-url https://me:pw12@host/simple", "a @ git+https://ghp_pw12@github.com/x/y", "-i http://pw12@h/"]
)
def test_a_password_in_the_file_is_refused_and_not_repeated(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserError, match="would be on record") as error:
        read_requirements(write(tmp_path, main=line))
    assert "pw12" not in str(error.value) and "--env NAME" in str(error.value)
    named = line.replace("me:pw12", "${TOKEN}").replace("ghp_pw12", "${TOKEN}").replace("pw12", "${TOKEN}")
    assert read_requirements(write(tmp_path, main=named)).lines == [named]
    ssh = "a @ git+ssh://git@github.com/x/y"  # a name that everybody has there
    assert read_requirements(write(tmp_path, main=ssh)).lines == [ssh]


@pytest.mark.parametrize(
    ("text", "words"),
    [("-r main.txt", "includes itself"), ("-r absent.txt", "absent.txt: No such file"),
     ("-r https://host/r.txt", "fetch that file")],
)  # fmt: skip
def test_an_include_that_cannot_be_read_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_requirements(write(tmp_path, main=text))


def test_a_file_that_is_not_there_or_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Is a directory"):
        read_requirements(tmp_path)
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="it is no text"):
        read_requirements(tmp_path / "x.txt")
