"""An interpreter of JaxTrainer's own: pyarrow, which `ray[train]` brings, starts threads and would slow our ranks."""

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 900.0


def make_environment(folder: Path) -> str:
    """The locked packages and `ray[train]` of the same Ray, in a new environment; returns its interpreter.

    Raises:
        RuntimeError: there is no `uv`, or it failed.
    """
    beside = str(Path(sys.executable).parent / "uv")
    uv = shutil.which(beside) or shutil.which("uv")
    if uv is None:
        raise RuntimeError("uv was not found: run `make setup`, or name an interpreter with --trainer-python")
    python = str(folder / "bin" / "python")
    ray = f"ray[train]=={importlib.metadata.version('ray')}"
    _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
    install = [uv, "pip", "install", "--quiet", "--python", python]
    _run([*install, "--require-hashes", "-r", str(ROOT / "requirements.lock")])
    _run([*install, ray])
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
