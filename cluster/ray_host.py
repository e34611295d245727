"""What is done on a node of a Ray that is not ours: Ray tasks, sent by value, for a node has nothing of ours at first.

Everything lies in `~/.spmd-launch/hosts/HOST`, of the user as whom Ray runs there.
"""

import contextlib
import getpass
import os
import shutil
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from cluster.place_code import Code
from cluster.processes import ProcessId, end_processes, marked_processes

ACTORS_TIMEOUT_S = 10.0
RANKS_TIMEOUT_S = 3.0
ID_FILE = "cluster_id"


def look(needed: tuple[str, ...], secret_file: str) -> dict[str, Any]:
    """This node, before anything of ours is there.

    Args:
        needed: packages.
        secret_file: that the client has written on its machine.
    """
    raylet = ProcessId.of(os.getppid())
    return {
        "home": os.path.join(os.path.expanduser("~"), ".spmd-launch", "hosts"),
        "user": getpass.getuser(),
        "uid": os.getuid(),
        "raylet": raylet and raylet.to_json(),
        "secret": _read(secret_file),
        "missing": [package for package in needed if not _installed(package)],
    }


def place(folder: str, cluster_id: str, code: Code) -> None:
    """Puts our code there; what an earlier cluster of this name has left goes."""
    earlier = _read(os.path.join(folder, ID_FILE))
    if earlier not in ("", cluster_id):
        remove(folder, earlier, [], "")
    code.place(Path(folder))
    Path(folder, ID_FILE).write_text(cluster_id)


def remove(folder: str, cluster_id: str, actors: list[int], purge: str) -> list[str]:
    """Ends what the cluster has there, once its actors have been told to end, and removes its folder.

    Args:
        folder: of the cluster.
        cluster_id: that its processes carry.
        actors: their pids.
        purge: our whole folder there, to be removed too unless another cluster has something in it; or "".

    Returns:
        A line for each thing that could not be done.
    """
    deadline = time.monotonic() + ACTORS_TIMEOUT_S
    while (left := [pid for pid in actors if _is_actor(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    deadline = time.monotonic() + RANKS_TIMEOUT_S
    while (marked := marked_processes(cluster_id)) and time.monotonic() < deadline:
        time.sleep(0.05)  # the kernel ends them with their agents
    end_processes(marked)
    shutil.rmtree(folder, ignore_errors=True)
    clusters, own = os.path.split(folder)
    others = sorted({*os.listdir(clusters)} - {own}) if purge and os.path.isdir(clusters) else []
    if purge and not others:
        shutil.rmtree(purge, ignore_errors=True)
    for parent in Path(folder).parents[:4]:  # up to ~/.spmd-launch
        with contextlib.suppress(OSError):  # something of another cluster is in it
            parent.rmdir()
    stays = [f"all of {purge} stays: {', '.join(others)} has a folder in it, and may be up"] if others else []
    return [*(f"actor process {pid} has not ended" for pid in left), *stays]


def _is_actor(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "ray::" in " ".join(process.cmdline()[:1])
    except psutil.Error:
        return False


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
