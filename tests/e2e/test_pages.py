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

pytestmark = pytest.mark.cluster

PYTHON_FOLDER = str(Path(sys.executable).parent)
# A mistake, which the page shows as such, and what it ends with.
MISTAKES = {"--set step=10": 2}


@pytest.fixture
def reader(cli: Cli, cluster: str, tmp_path: Path) -> Cli:
    """The command line in a folder of the reader's."""
    return Cli(cli.home, tmp_path)


def typed(reader: Cli, command: str) -> str:
    """What a command prints."""
    words = shlex.split(command)
    if words[0] == "spmd-launch":
        return reader(*words[1:], code=next((code for text, code in MISTAKES.items() if text in command), 0))
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
