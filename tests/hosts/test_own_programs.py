"""The user's own programs on machines that share nothing, from a client that is none of them."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli
from tests.hosts.conftest import Lab

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]

SCRIPT = """
import os, pathlib, socket
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
from helpers import OFFSET

jax.distributed.initialize()
hosts = multihost_utils.process_allgather(jnp.float32(jax.process_index() + OFFSET))
key = os.environ["API_KEY"][::-1]
print(f"{socket.gethostname()} of {jax.process_count()} has {hosts.tolist()}, {key}", flush=True)
pathlib.Path("written.txt").write_text(socket.gethostname())
if "fail" in os.environ and jax.process_index() == 2:
    raise ValueError("the data of this host is wrong")
"""


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Cli:
    """The command line in a folder with a script of the user's and what it imports."""
    (tmp_path / "fit.py").write_text(SCRIPT)
    (tmp_path / "helpers.py").write_text("OFFSET = 10")
    user = Cli(lab.cli.home, tmp_path)
    user.environment = {**lab.cli.environment, "API_KEY": "wxyz"}
    return user


def test_a_script_runs_on_all_hosts_and_what_it_wrote_comes_to_the_client(user: Cli) -> None:
    out = user("run", "--name", "fit", "--env", "API_KEY", "--", "python", "fit.py")
    for rank in range(3):
        # A part of a line of gloo's may stand before it.
        assert re.search(rf"^\[{rank}\] .*h{rank + 1} of 3 has \[10\.0, 11\.0, 12\.0\], zyxw$", out, re.MULTILINE)
    assert (user.home / "jobs" / "fit" / "results" / "written.txt").read_text() == "h1"
    assert "exit codes     0 of rank 0, 0 of rank 1, 0 of rank 2" in out


def test_what_one_host_raises_is_the_message(user: Cli) -> None:
    out = user("run", "--name", "unfit", "--env", "API_KEY", "--env", "fail=1", "--", "python", "fit.py", code=1)
    assert "rank 2 on host" in out and "raised ValueError: the data of this host is wrong" in out
    assert "_spmd_launch" not in out
    assert not [path for path in user.home.rglob("*") if path.is_file() and b"wxyz" in path.read_bytes()]


def test_exec_runs_on_each_host_or_on_one(user: Cli) -> None:
    assert user("exec", "--", "hostname") == "[0] h1\n[1] h2\n[2] h3\n"
    assert user("exec", "--rank", "2", "--", "hostname") == "[2] h3\n"


def test_a_workload_of_the_users_has_all_that_the_shipped_ones_have(lab: Lab) -> None:
    examples = Cli(lab.cli.home, ROOT / "examples")
    examples.environment = lab.cli.environment
    settings = ["--set", "num_steps=40", "--set", "num_blocks=12", "--set", "num_rows=120", "--checkpoint-every", "10"]
    calm = examples.json("submit", "./my_workload.py:run", "--name", "calm-own", *settings)
    killed = examples.json(
        "submit", "./my_workload.py:run", "--name", "killed-own", *settings, "--inject", "kill rank=1 step=25"
    )  # fmt: skip
    assert killed["result_digest"] == calm["result_digest"]
    assert lab.cli.job("killed-own")["attempt"] == 2
    assert "no parameter 'num_stepz'" in examples("submit", "./my_workload.py:run", "--set", "num_stepz=1", code=2)
