"""`new`: what it writes runs at once, and what it must not write it refuses."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import UserError
from launcher.new_workload import STARTER, write_workload
from tests.conftest import ROOT, Cli


def test_its_test_passes_as_it_is_written_and_what_to_do_next_is_said(tmp_path: Path) -> None:
    out = Cli(tmp_path / "home", tmp_path)("new", "ridge-regression")
    assert {path.name for path in tmp_path.iterdir()} == {"ridge_regression.py", "test_ridge_regression.py"}
    assert "wrote ridge_regression.py" in out and "spmd-launch submit ./ridge_regression.py:run" in out
    assert "my_workload" not in "".join(path.read_text() for path in tmp_path.iterdir())
    command = re.search(r"python (-m pytest \S+)", out)
    assert command is not None
    environment = Cli(tmp_path).environment | {"JAX_PLATFORMS": "cpu"}
    words = [sys.executable, *command[1].split(), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr


def test_the_example_is_what_it_writes() -> None:
    assert (ROOT / "examples/my_workload.py").read_text() == (STARTER / "my_workload.py").read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("json", "Python has a module 'json', which json.py would hide"),
        ("jax", "Python has a module 'jax'"),
        ("workloads", "Python has a module 'workloads'"),
        ("class", "'class' is no name for a module of Python"),
        ("3d", "first a letter"),
        ("ridge.py", "first a letter, as ridge"),
        ("my models/ridge", "first a letter, as my_models_ridge"),
        ("_ridge", "first a letter, as ridge"),
        ("größe", "is no name for a module"),
        ("", "is no name for a module"),
        ("mine", "there is a test_mine.py here, and nothing is overwritten"),
        ("linked", "there is a linked.py here"),
    ],
)
def test_other_names_are_refused_and_nothing_is_written(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "test_mine.py").write_text("kept")
    (tmp_path / "linked.py").symlink_to("nowhere")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=re.escape(words)):
        write_workload(name, tmp_path)
    assert sorted(tmp_path.iterdir()) == before and (tmp_path / "test_mine.py").read_text() == "kept"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"mine\.py cannot be written: No such file or directory"):
        write_workload("mine", tmp_path / "absent")
