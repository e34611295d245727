"""The agent's side of a user's workload: their folder on this host, and a look at their functions."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.attempt import ANSWER
from launcher.command_process import Activation, unpack_folder
from launcher.whole_folder import made_whole

INSPECTION_TIMEOUT_S = 90.0
NO_DEVICES = {"JAX_PLATFORMS": "cpu"}  # a rank may hold them, and a module may make arrays when it is imported


async def user_folder(host: Path, digest: str, name: str) -> Path:
    """The unpacked copy of a user's folder on this host, made once for each content.

    Args:
        host: our folder on this host's disk; the archive is among its files.
        digest: of the archive.
        name: of the archive.
    """
    target = host / "folders" / digest
    if not target.exists():
        await asyncio.to_thread(_unpack_whole, host / "files" / digest / name, target)
    return target


def _unpack_whole(archive: Path, target: Path) -> None:
    with made_whole(target) as partial:
        unpack_folder(archive, partial)


async def inspect(
    question: Mapping[str, Any], environment: Mapping[str, str], folder: Path, own: Activation | None
) -> dict[str, Any]:
    """What `launcher.rank.inspect_workload` says; `refused` where it says nothing.

    Args:
        question: all of it but the folder.
        environment: of a rank of this code.
        folder: the user's, here.
        own: the Python environment that it is for; None: this process's Python.
    """
    python, more = (own.python, own.variables(environment)) if own else (sys.executable, {})
    process = await asyncio.create_subprocess_exec(
        python, "-m", "launcher.rank.inspect_workload", env={**environment, **more, **NO_DEVICES}, cwd=folder,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    asked = json.dumps({**question, "folder": str(folder)}).encode() + b"\n"
    try:
        output, errors = await asyncio.wait_for(process.communicate(asked), INSPECTION_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return {"refused": f"{question['workload']}: importing it took more than {INSPECTION_TIMEOUT_S:g} s on a host"}
    for line in reversed(output.decode(errors="replace").splitlines()):
        if line.startswith(ANSWER):
            answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
            return answer
    lines = errors.decode(errors="replace").strip().splitlines() or ["no message"]
    return {"refused": f"{question['workload']}: its process ended with code {process.returncode}: {lines[-1]}"}
