"""Small packages for tests that need a package index and may not ask one."""

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> Path:
    """A pure Python wheel of a module `name` that has `VERSION`."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {
        f"{name}.py": f"VERSION = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{file},sha256={digest},{len(text)}\n"
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


BACKEND = """
import os, pathlib, shutil, time

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    wheel, hurry = pathlib.Path({wheel!r}), pathlib.Path({hurry!r})
    hurry.with_name("building").write_text(str(os.getpid()))
    while not hurry.exists():
        time.sleep(0.1)
    shutil.copy(wheel, wheel_directory)
    return wheel.name
"""


def write_slow_package(folder: Path, name: str, hurry: Path) -> Path:
    """A source package `name` 1.0 that is built once `hurry` exists; until then `building` beside it has its pid."""
    wheel = write_wheel(hurry.parent / "built", name, "1.0")
    files = {
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: 1.0\n",
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        f"[project]\nname = '{name}'\nversion = '1.0'\n",
        "backend.py": BACKEND.format(wheel=str(wheel), hurry=str(hurry)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            info = tarfile.TarInfo(f"{name}-1.0/{file}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path
