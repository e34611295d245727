"""The script that makes a hash-locked environment on a host, run here as it is there, on a package of our own."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from uv import find_uv_bin

from cluster.host_environment import MAKE

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A package `tiny` 1.0, as a wheel in a folder of its own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = folder / "tiny-1.0-py3-none-any.whl"
    files = {
        "tiny.py": "ANSWER = 42\n",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(text)}\n"
        archive.writestr("tiny-1.0.dist-info/RECORD", record + "tiny-1.0.dist-info/RECORD,,\n")
    return path


def _make(home: Path, wheel: Path, sha256: str, *, own_uv: bool = False) -> subprocess.CompletedProcess[bytes]:
    lock = f"tiny==1.0 --hash=sha256:{sha256}\n".encode()
    uv = Path(find_uv_bin()).read_bytes() if own_uv else b""
    order = {"home": str(home), "key": "k", "version": VERSION, "lock_bytes": len(lock), "uv_bytes": len(uv),
             "uv": "" if own_uv else find_uv_bin()}  # fmt: skip
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
    code = "import sys, tiny; print(tiny.ANSWER, '%d.%d' % sys.version_info[:2])"
    assert subprocess.check_output([python, "-c", code], text=True).split() == ["42", VERSION]
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
