"""What is different for a workload of the user's: their folder travels, and a host looks at their module."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.record import Cluster
from launcher.command import FOLDER
from launcher.errors import UserError
from launcher.job import InputFile
from launcher.protocol import Connection
from launcher.temporary import sha256_of, temporary_folder
from launcher.user_folder import NAME, pack_folder
from workloads.layout import Layout
from workloads.user import Target

INSPECTION_TIMEOUT_S = 180.0
Packed = tuple[Mapping[str, InputFile], Mapping[str, Path]]  # input files by parameter, their paths by sha256


def pack_user_folder(folder: Path) -> Packed:
    """The user's folder as an input file."""
    archive = temporary_folder() / NAME
    archive.write_bytes(pack_folder(folder))
    digest = sha256_of(archive)
    return {FOLDER: InputFile(name=NAME, sha256=digest, num_bytes=archive.stat().st_size)}, {digest: archive}


def require_file(target: Target, folder: Path) -> None:
    """Refuses a file that is not there, before anything is sent.

    Raises:
        UserError: with the path.
    """
    path = folder / target.place
    if target.is_file and not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{target.place} lies outside of {folder}, which is what travels: go to its folder")
    if target.is_file and not path.is_file():
        raise UserError(f"there is no file {target.place} in {folder}")


def default_name(target: Target) -> str:
    """What a job is called by default: `my-workload` of `./my_workload.py:run`."""
    return re.sub(r"[^a-z0-9]+", "-", target.stem.lower()).strip("-")[:40] or "workload"


def inspect(
    cluster: Cluster,
    workload: str,
    settings: Mapping[str, str] | None,
    layout: Layout,
    *,
    folder: InputFile,
    code_digest: str,
    blobs: Mapping[str, bytes],
) -> dict[str, Any]:
    """Has a host import the workload: its parameters, and the config that the settings make.

    Args:
        cluster: that is up.
        workload: as submitted.
        settings: `{parameter: text}`; None: only the parameters are asked for.
        layout: that the config must fit.
        folder: of the user, packed.
        code_digest: of our packages.
        blobs: bytes by digest, sent where the cluster lacks them.

    Raises:
        UserError: what is wrong with it.
    """
    request = {
        "op": "inspect",
        "workload": workload,
        "settings": None if settings is None else dict(settings),
        "num_hosts": layout.num_hosts,
        "devices_per_host": layout.devices_per_host,
        "folder": [folder.sha256, folder.name],
        "code": code_digest,
    }
    with Connection(cluster.socket, timeout_s=INSPECTION_TIMEOUT_S) as connection:
        answer = connection.ask(request)
        for digest in answer.get("missing", ()):
            connection.ask({"op": "blob", "digest": digest, "is_file": digest == folder.sha256}, blobs[digest])
        if "missing" in answer:
            answer = connection.ask(request)
    if "refused" in answer:
        raise UserError(answer["refused"])
    return dict(answer)
