"""Which packages a requirements file comes to: on the head, by uv, once for each content."""

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from cluster.make_environment import uv_environment
from cluster.record import home
from launcher.command_process import execute
from launcher.requirements import Requirements

KEEP = 8  # that were used last: environments, and resolved files
NO_UV = "it has no uv, which makes environments: `pip install uv` into its Python"
TIMEOUT_S = 600.0  # a package without a wheel may have to be built to tell what it needs


class ResolveError(Exception):
    """There is no such set of versions, or nobody to ask: the words of uv."""


def made_for_jobs() -> Path:
    """Where this machine keeps what comes of requirements files."""
    return home() / "requirements"


def find_uv(environment: Mapping[str, str]) -> str:
    """The uv of this host: in the path, beside this Python, or the one that `up` has sent; '' if there is none."""
    beside, sent = Path(sys.executable).with_name("uv"), home() / "env" / "uv"
    found = shutil.which("uv", path=environment.get("PATH"))
    return found or next((str(path) for path in (beside, sent) if os.access(path, os.X_OK)), "")


def identity(content: bytes, *more: str) -> str:
    """Of what follows from a content and the Python of this host."""
    python = (sys.version, os.path.realpath(sys.executable), platform.machine())
    return hashlib.sha256(content + "\0".join(["", *python, *more]).encode()).hexdigest()[:16]


async def lock_requirements(asked: Requirements, environment: Mapping[str, str], work: Path, *, beneath: bool) -> str:
    """The hash-locked list of all packages that requirements come to on this host.

    Args:
        asked: the file.
        environment: for uv; its own variables decide, too.
        work: a folder for what lies there meanwhile.
        beneath: what this Python has is there already, and is not to be changed.

    Raises:
        ResolveError: with the words of uv.
    """
    has = [f"{package.name}=={package.version}" for package in metadata.distributions()] if beneath else []
    constraints = "\n".join([*asked.constraints, *sorted(set(has))])
    settings = [f"{name}={value}" for name, value in sorted(environment.items()) if name.startswith("UV_")]
    locked = made_for_jobs() / "locked" / identity(asked.text.encode(), constraints, *settings)
    if not locked.exists():
        locked.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=work) as folder:
            lock = await _ask_uv(asked, constraints, environment, Path(folder))
        partial = locked.with_name(f".{locked.name}.{os.getpid()}")
        partial.write_text(lock)
        partial.rename(locked)
    locked.touch()
    lock = locked.read_text()
    for old in sorted(locked.parent.iterdir(), key=lambda path: -path.stat().st_mtime)[KEEP:]:
        old.unlink(missing_ok=True)
    return lock


async def _ask_uv(asked: Requirements, constraints: str, environment: Mapping[str, str], folder: Path) -> str:
    uv = find_uv(environment)
    if not uv:
        raise ResolveError(NO_UV)
    (folder / asked.name).write_text(asked.text)
    (folder / "constraints").write_text(constraints)
    common = ["--quiet", "--python", sys.executable, "--constraint", "constraints"]
    if asked.hashed:  # it is a lock already, and is only looked at
        words = ["install", *common, "--dry-run", "--require-hashes", "--target", "empty", "-r", asked.name]
    else:
        words = ["compile", *common, "--generate-hashes", "--no-header", "--no-annotate", asked.name]
        words += ["--output-file", "lock"]
    done = await execute([uv, "pip", *words], uv_environment(environment), folder, TIMEOUT_S)
    if done.code != 0:
        late = f"no answer of uv within {TIMEOUT_S:g} s\n" if done.code is None and not done.error else ""
        raise ResolveError(late + done.error + done.output.decode(errors="replace").strip())
    return (
        asked.text if asked.hashed else "".join(f"{line}\n" for line in asked.options) + (folder / "lock").read_text()
    )
