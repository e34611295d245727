"""The script that makes a hash-locked environment on a host, run here as it is there, on a package of our own."""

import concurrent.futures
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from cluster.host_environment import MAKE
from tests.wheels import write_wheel

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A package `tiny` 1.0, as a wheel in a folder of its own."""
    return write_wheel(tmp_path / "wheels", "tiny", "1.0")


def _make(
    home: Path, wheel: Path, sha256: str, *, own_uv: bool = False, **more: Any
) -> subprocess.CompletedProcess[bytes]:
    lock = f"tiny==1.0 --hash=sha256:{sha256}\n".encode()
    uv = Path(find_uv_bin()).read_bytes() if own_uv else b""
    order = {"home": str(home), "key": "k", "version": VERSION, "lock_bytes": len(lock), "uv_bytes": len(uv),
             "uv": "" if own_uv else find_uv_bin(), **more}  # fmt: skip
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PYTHONPATH"))},
        "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin",
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(wheel.parent),
        "UV_CACHE_DIR": str(home.parent / "cache"),
    }
    return subprocess.run(
        [sys.executable, "-c", MAKE.read_text()],
        input=json.dumps(order).encode() + b"\n" + lock + uv, env=environment, capture_output=True, check=False,
    )  # fmt: skip


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("own_uv", [False, True], ids=["uv-of-the-host", "uv-sent"])
def test_an_environment_is_made_once(tmp_path: Path, wheel: Path, own_uv: bool) -> None:
    home = tmp_path / "home"
    done = _make(home, wheel, _sha256(wheel), own_uv=own_uv)
    assert done.returncode == 0, done.stderr
    python = home / "env" / "k" / "bin" / "python"
    code = "import sys, tiny; print(tiny.VERSION, '%d.%d' % sys.version_info[:2])"
    assert subprocess.check_output([python, "-c", code], text=True).split() == ["1.0", VERSION]
    made = python.lstat().st_mtime_ns
    assert _make(home, wheel, _sha256(wheel)).returncode == 0
    assert python.lstat().st_mtime_ns == made
    assert (home / "env").stat().st_mode & 0o077 == 0


def test_a_package_that_is_not_the_locked_one_is_refused(tmp_path: Path, wheel: Path) -> None:
    home = tmp_path / "home"
    done = _make(home, wheel, "0" * 64)
    assert done.returncode == 1
    assert b"tiny" in done.stderr and b"hash" in done.stderr.lower()
    assert not (home / "env" / "k" / ".ready").exists()
    assert _make(home, wheel, _sha256(wheel)).returncode == 0, "the half-made one is in the way"


def test_a_jobs_environment_shows_its_making_and_sees_what_lies_beneath(tmp_path: Path, wheel: Path) -> None:
    beneath = tmp_path / "beneath"
    beneath.mkdir()
    (beneath / "tiny.py").write_text("VERSION = 'hidden'\n")
    (beneath / "other.py").write_text("NAME = 'beneath'\n")
    done = _make(tmp_path / "home", wheel, _sha256(wheel), beneath=[str(beneath)], keep=2)
    assert done.returncode == 0 and b"tiny==1.0" in done.stdout, done
    python = tmp_path / "home" / "env" / "k" / "bin" / "python"
    code = "import other, tiny; print(tiny.VERSION, other.NAME)"
    assert subprocess.check_output([python, "-c", code], text=True).split() == ["1.0", "beneath"]


def test_the_last_used_stay_and_what_is_in_use_stays_too(tmp_path: Path, wheel: Path) -> None:
    home = tmp_path / "home"
    (home / "env" / "half-made").mkdir(parents=True)

    def make(key: str) -> set[str]:
        done = _make(home, wheel, _sha256(wheel), key=key, keep=2)
        assert done.returncode == 0, done.stderr
        return {path.name for path in (home / "env").iterdir() if path.is_dir()}

    assert make("a") == {"a"}, "what was left half made is gone"
    assert make("b") == {"a", "b"}
    assert make("a") == {"a", "b"}  # used again: b is the older one now
    assert make("c") == {"a", "c"}
    with (home / "env" / "a" / ".ready").open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        make("d")
        assert make("e") == {"a", "d", "e"}
    assert make("d") == {"d", "e"} and not (home / "env" / "a.lock").exists()


def test_two_at_once_share_one(tmp_path: Path, wheel: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        makings = [pool.submit(_make, tmp_path / "home", wheel, _sha256(wheel), keep=2) for _ in range(2)]
    outputs = [making.result().stdout for making in makings]
    assert [making.result().returncode for making in makings] == [0, 0]
    assert sum(b"tiny==1.0" in output for output in outputs) == 1, "made once"
