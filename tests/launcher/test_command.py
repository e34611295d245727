"""What of a command line is for Python, and what a variable may be."""

import asyncio
import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.command import interpreter_words, is_python
from launcher.command_process import BOOTSTRAP, MAX_OUTPUT, execute, place_toolkit, rank_words
from launcher.errors import UserError
from launcher.run_submission import parse_command, require_program
from launcher.user_folder import travelling_files
from tests.ranks import ROOT


@pytest.mark.parametrize(
    ("program", "expected"),
    [("python", True), ("python3", True), ("python3.12", True), ("/opt/jax/bin/python3.11", True), ("python2", False),
     ("pythonic", False), ("bash", False), ("./train.py", False), ("uv", False)],
)  # fmt: skip
def test_which_programs_are_pythons(program: str, expected: bool) -> None:
    assert is_python(program) is expected


@pytest.mark.parametrize(
    ("line", "options", "script"),
    [
        ("python train.py -v --x 1", "python", "train.py -v --x 1"),
        ("python -u -W error -X dev train.py -c", "python -u -W error -X dev", "train.py -c"),
        ("python -m pkg.train -u", "python", "-m pkg.train -u"),
        ("python -B -c pass a", "python -B", "-c pass a"),
        ("python -um pkg.train -v", "python -u", "-m pkg.train -v"),
        ("python -mpkg data.csv", "python", "-m pkg data.csv"),
        ("python -Bucpass a", "python -Bu", "-c pass a"),
        ("python -uW ignore -Xdev -Werror a.py", "python -uW ignore -Xdev -Werror", "a.py"),
        ("python -BX dev -m pkg", "python -BX dev", "-m pkg"),
        ("python --check-hash-based-pycs never a.py", "python --check-hash-based-pycs never", "a.py"),
        ("python -u -- a.py -m x", "python -u", "a.py -m x"),
    ],
)
def test_a_pythons_command_line_is_split(line: str, options: str, script: str) -> None:
    assert interpreter_words(line.split()) == (options.split(), script.split())


@pytest.mark.parametrize(
    "line", ["python", "python -V", "python -", "python -m", "python -X dev", "python -um", "python -u --"]
)
def test_a_python_that_runs_nothing_of_the_users_is_left_alone(line: str) -> None:
    assert interpreter_words(line.split()) is None
    words, follows = rank_words(line.split(), Path("/code"), "/env/python")
    assert not follows and words[1:] == line.split()[1:]


def test_a_named_interpreter_stays_and_a_bare_one_is_the_hosts() -> None:
    code, hosts = Path("/code"), "/env/python"
    assert rank_words(["/opt/bin/python", "-u", "a.py", "b"], code, hosts) == (
        ["/opt/bin/python", "-u", f"/code/{BOOTSTRAP}", "a.py", "b"], True,
    )  # fmt: skip
    assert rank_words(["python3", "a.py"], code, hosts)[0][0] == hosts
    assert rank_words(["bash", "a.sh"], code, hosts) == (["bash", "a.sh"], False)


def test_the_toolkit_is_importable_where_nothing_of_ours_is_installed_and_brings_no_other_package(
    tmp_path: Path,
) -> None:
    place = place_toolkit(ROOT, tmp_path)
    assert [path.name for path in place.iterdir()] == ["workloads"]
    code = "import importlib.util, workloads.spmd; print(*map(importlib.util.find_spec, ('launcher', 'cluster')))"
    # Without `site`, what is installed is named here: no editable install of ours among it.
    packages = os.pathsep.join([str(place), *site.getsitepackages()])
    words = [sys.executable, "-S", "-B", "-c", code]
    done = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": packages}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "None None\n"), done.stderr


def test_variables_have_values_or_are_secrets() -> None:
    command = parse_command(["true"], ["A=1", "B=", "C==x", "KEY"])
    assert command.variables == {"A": "1", "B": "", "C": "=x"} and command.secrets == ("KEY",)


@pytest.mark.parametrize("text", ["", "=1", "1A=2", "A B=1", "SPMD_LAUNCH_X=1", "RAY_ADDRESS=x", "A=b\0c", "A-B"])
def test_what_is_no_variable_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--env"):
        parse_command(["true"], [text])


@pytest.mark.parametrize(
    "line",
    ["python train.py", "python -u ./train.py -x", "python -m absent", "python -c pass", "./job.sh", "bash absent.sh",
     "/opt/bin/tool", "python /data/other.py", "python src",
     "python -um absent", "python link/a.py"],
)  # fmt: skip
def test_what_travels_or_is_on_the_hosts_may_run(tmp_path: Path, line: str) -> None:
    make_project(tmp_path)
    (tmp_path / "src" / "a.py").write_text("")
    (tmp_path / "link").symlink_to("src")
    require_program(line.split(), tmp_path, travelling_files(tmp_path))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python absent.py", "there is no absent.py in"),
        ("./absent.sh", "there is no ./absent.sh in"),
        ("./train.py", "cannot be executed: chmod"),
        ("python private.py", "does not travel to the hosts"),
        ("python ../outside.py", "does not travel to the hosts"),
    ],
)
def test_what_does_not_travel_is_refused(tmp_path: Path, line: str, words: str) -> None:
    make_project(tmp_path / "project")
    (tmp_path / "outside.py").write_text("")
    with pytest.raises(UserError, match=words):
        require_program(line.split(), tmp_path / "project", travelling_files(tmp_path / "project"))


def make_project(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in ("train.py", "private.py", "job.sh"):
        (folder / name).write_text("")
    (folder / "job.sh").chmod(0o755)
    (folder / "src").mkdir()
    (folder / ".gitignore").write_text("private.py")


@pytest.mark.parametrize(("num_bytes", "num_cut"), [(MAX_OUTPUT, 0), (MAX_OUTPUT + 70_000, 70_000)])
def test_of_much_output_the_end_is_kept_and_what_was_cut_is_counted(
    tmp_path: Path, num_bytes: int, num_cut: int
) -> None:
    words = ["python", "-c", f"print(end='x' * {num_bytes - 3} + 'end')"]
    done = asyncio.run(execute(words, os.environ, tmp_path, 60.0))
    assert (done.code, len(done.output), done.num_cut) == (0, MAX_OUTPUT, num_cut)
    assert done.output.endswith(b"xend")
