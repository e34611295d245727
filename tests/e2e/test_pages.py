"""The commands of pages, on the shared cluster: a reader who types them sees what the page shows."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.config_file import load
from tests.conftest import Cli
from tests.pages import Page, assert_said
from tests.ranks import ROOT

pytestmark = pytest.mark.cluster

PYTHON_FOLDER = str(Path(sys.executable).parent)
# What a page shows as a mistake, or as refused, and the exit code that it ends with.
FAILS = {"--set step=10": 2, "other-program": 1}


@pytest.fixture
def reader(cli: Cli, cluster: str, tmp_path: Path) -> Cli:
    """The command line in a folder of the reader's."""
    return Cli(cli.home, tmp_path)


def typed(reader: Cli, command: str) -> str:
    """What a command prints."""
    words = shlex.split(command)
    if words[0] == "spmd-launch":
        return reader(*words[1:], code=next((code for text, code in FAILS.items() if text in command), 0))
    assert words[0] == "python", command
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PATH": f"{PYTHON_FOLDER}:{os.environ['PATH']}"}
    environment.pop("XLA_FLAGS", None)
    return subprocess.check_output(words, cwd=reader.cwd, env=environment, text=True, timeout=120)


@pytest.mark.parametrize("name", ["guide.md", "migrating.md"])
def test_every_command_prints_what_the_page_shows(reader: Cli, cluster: str, name: str) -> None:
    page = Page(name)
    assert reader.cwd is not None
    files = page.write_files(reader.cwd)
    for file in files:
        if file.suffix == ".yaml":
            assert load(file).name == file.stem
    done = 0
    for command, expected in page.commands():
        if command.split()[1] in ("up", "down"):  # the shared cluster stands for the page's
            continue
        if command == "spmd-launch status":  # a reader has let the hosts import everything again
            reader.wait_for(lambda: reader.json("status", cluster)["state"] == "WARM", 120.0)
        assert_said(expected.replace("laptop-", f"{cluster}-"), typed(reader, command))
        done += 1
    assert done >= 2 and files
    if name == "guide.md":
        calm, killed = (reader.job(job) for job in ("fit-calm", "fit-killed"))
        assert killed["attempt"] == 2 and calm["result"]["result_digest"] == killed["result"]["result_digest"]


@pytest.mark.slow  # three trainings
def test_the_readme_opens_with_what_happens(reader: Cli, cluster: str) -> None:
    commands = dict(Page("README.md").commands())
    assert [command.partition(" --inject ")[2] for command in commands] == [
        '"kill rank=1 step=40" --name k', '"other-program rank=1 step=5" --name p',
    ]  # fmt: skip
    for command, expected in commands.items():
        assert_said(expected.replace("laptop-", f"{cluster}-"), typed(reader, command))
    reader("submit", "transformer", "--set", "steps=60", "--name", "k-calm")
    calm, killed = (reader.job(job) for job in ("k-calm", "k"))
    assert killed["attempt"] == 2 and calm["result"]["result_digest"] == killed["result"]["result_digest"]


def test_plain_jax_gives_the_wrong_number_that_the_readme_shows(reader: Cli) -> None:
    lines = typed(reader, f"python {ROOT / 'examples' / 'different_programs.py'}").splitlines()
    *processes, last = [line for line in lines if not line.startswith("[Gloo]")]
    assert "".join(f"    {line}\n" for line in [*sorted(processes), last]) in Page("README.md").text
