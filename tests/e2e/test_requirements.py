"""`--requirements`: a job's own environment on every host, on an index of two small packages."""

import json
import shutil
from pathlib import Path

import psutil
import pytest

from tests.conftest import Cli, command_of, lives
from tests.wheels import write_slow_package, write_wheel

pytestmark = pytest.mark.cluster

WORKLOAD = """
import dataclasses
import sys
import numpy as np
import pair
from workloads.result import Result, digest_arrays

@dataclasses.dataclass(frozen=True)
class Config:
    size: int = 3

def run(config, context, resume=False):
    value = np.float64(config.size * float(pair.VERSION))
    print("runs in", sys.prefix)
    return Result(metrics={"value": float(value)}, diagnostics={}, result_digest=digest_arrays({"v": value}))

run.__annotations__["config"] = Config
"""


@pytest.fixture
def user(cli: Cli, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in a folder that has a requirements file; `pair` needs `part` of its own version."""
    project, index = tmp_path / "project", tmp_path / "index"
    project.mkdir()
    for version in ("1.0", "2.0"):
        write_wheel(index, "part", version)
        write_wheel(index, "pair", version, [f"part=={version}"])
    (project / "where.txt").write_text(f"--no-index\n--find-links {index}\n")
    (project / "requirements.txt").write_text("-r where.txt\npair==2.0\n")
    return Cli(cli.home, project)


def environments(user: Cli) -> dict[str, bool]:
    """Those on this machine, and whether they are whole."""
    base = user.home / "requirements" / "env"
    return {path.name: (path / ".ready").exists() for path in base.iterdir() if path.is_dir()} if base.exists() else {}


def cache(user: Cli) -> list[str]:
    """Options that keep these packages out of the cache of whoever runs the tests."""
    return ["--env", f"UV_CACHE_DIR={user.home}/uv-cache"]


def run(user: Cli, name: str, file: str, *words: str, code: int = 0) -> str:
    return user("run", "--name", name, "--requirements", file, *cache(user), "--", *words, code=code)


def test_a_script_runs_in_an_environment_that_is_made_once(user: Cli) -> None:
    before = set(environments(user))
    script = "import json, os, pair, part, sys; print(json.dumps([pair.VERSION, part.VERSION, sys.prefix]))"
    run(user, "req-first", "requirements.txt", "python", "-c", script)
    (made,) = environments(user).keys() - before
    folder = user.home / "requirements" / "env" / made
    for rank in (0, 1):
        log = (user.home / "jobs" / "req-first" / "logs" / f"attempt-1.rank-{rank}.log").read_text()
        assert json.loads(log) == ["2.0", "2.0", str(folder)]
    assert [event["packages"] for event in user.events("req-first", "environment")] == [2, 2]
    when = (folder / "pyvenv.cfg").stat().st_mtime_ns
    out = run(user, "req-again", "requirements.txt", "bash", "-c", "python -c 'import pair'; echo $VIRTUAL_ENV")
    assert out.count(str(folder)) == 2 and (folder / "pyvenv.cfg").stat().st_mtime_ns == when
    for resolved in (user.home / "requirements" / "locked").iterdir():
        resolved.unlink()  # a job that is resumed has its own list
    user("submit", "--resume", "req-again")
    assert str(folder) in (user.home / "jobs" / "req-again" / "logs" / "attempt-2.rank-1.log").read_text()
    failed = run(user, "req-no-jax", "requirements.txt", "python", "-c", "import numpy", code=1)
    assert "ModuleNotFoundError: No module named 'numpy'" in failed, "nothing of the hosts' Python is in it"


@pytest.mark.parametrize(
    ("text", "words"),
    [("pair==9", "no version of pair==9"), ("pair==2.0\npart==1.0", "depends on part==2.0"),
     ("-e .", "is a path of this machine"), ("-r absent.txt", "absent.txt: No such file")],
)  # fmt: skip
def test_what_cannot_be_resolved_is_refused_before_anything_starts(user: Cli, text: str, words: str) -> None:
    jobs = {path.name for path in (user.home / "jobs").glob("*")}
    made = environments(user)
    assert user.cwd is not None
    (user.cwd / "wrong.txt").write_text(f"-r where.txt\n{text}\n")
    out = run(user, "req-wrong", "wrong.txt", "true", code=2)
    assert words in " ".join(out.split()) and out.startswith("error: --requirements wrong.txt: ")
    assert {path.name for path in (user.home / "jobs").glob("*")} == jobs and environments(user) == made


def test_a_host_that_finds_no_package_ends_the_job_in_the_words_of_uv(user: Cli, tmp_path: Path) -> None:
    assert user.cwd is not None
    (user.cwd / "older.txt").write_text("-r where.txt\npair==1.0\n")
    run(user, "req-lock", "older.txt", "true")  # which is why it needs not be resolved again
    (tmp_path / "index" / "part-1.0-py3-none-any.whl").unlink()
    shutil.rmtree(user.home / "uv-cache")
    for name in environments(user):
        (user.home / "requirements" / "env" / name / ".ready").unlink()
    out = run(user, "req-gone", "older.txt", "true", code=1)
    assert "host shared-" in out and "cannot make the environment of the job" in out and "part" in out
    assert user.job("req-gone")["attempt"] == 1


def test_a_job_is_cancelled_while_its_environment_is_made(user: Cli, tmp_path: Path) -> None:
    assert user.cwd is not None
    hurry = tmp_path / "hurry"
    write_slow_package(tmp_path / "index", "slow", hurry)
    (user.cwd / "slow.txt").write_text("-r where.txt\nslow\n")
    before = environments(user)
    words = ["run", "--requirements", "slow.txt", *cache(user), "--detach", "--name"]
    user(*words, "req-slow", "--", "python", "-c", "import slow")
    builder = psutil.Process(int(user.wait_for(lambda: _text(tmp_path / "building"))))
    user.wait_for(lambda: "environment" in user.json("status", "req-slow")["ranks"][0]["phase"])
    assert user.json("status", "req-slow")["state"] == "STARTING"
    user("cancel", "req-slow")
    assert user.job("req-slow")["state"] == "CANCELLED"
    folder = str(user.home / "requirements")
    # All of it has been killed by now; who is not the agent's own child may take some moments to go.
    user.wait_for(lambda: not [p for p in psutil.process_iter() if folder in " ".join(command_of(p))], 10.0)
    user.wait_for(lambda: not lives(builder), 10.0)
    assert not [name for name, whole in environments(user).items() if whole and name not in before]
    hurry.touch()
    user("run", *words[1:-2], "--name", "req-quick", "--", "python", "-c", "import slow")


def test_a_workload_has_what_the_hosts_have_and_its_own(user: Cli) -> None:
    assert user.cwd is not None
    (user.cwd / "mine.py").write_text(WORKLOAD)
    user.environment["UV_CACHE_DIR"] = str(user.home / "uv-cache")
    assert "No module named 'pair'" in user("submit", "./mine.py:run", code=2)
    requirements = ["--requirements", "requirements.txt"]
    out = user("submit", "./mine.py:run", *requirements, "--set", "size=4", "--name", "req-mine")
    log = (user.home / "jobs" / "req-mine" / "logs" / "attempt-1.rank-1.log").read_text()
    assert "value   8" in out and f"runs in {user.home}/requirements/env/" in log
    assert "size = 3" in user("workloads", "./mine.py:run", *requirements)
    assert "value   10" in user("submit", "--resume", "req-mine", "--set", "size=5")
    assert "for code of yours" in user("submit", "psum-check", *requirements, code=2)
    assert "the environment that it had" in user("submit", "--resume", "req-mine", *requirements, code=2)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
