"""What is different for a job with code of the user's: their folder travels, and a host looks at their functions."""

import re
from collections.abc import Mapping
from pathlib import Path

from cluster.place_code import Code
from cluster.record import Cluster
from launcher.choose import choose_cluster, choose_layout
from launcher.command import FOLDER
from launcher.errors import UserError
from launcher.job import InputFile
from launcher.protocol import Message
from launcher.sending import ask_with_bytes, our_code
from launcher.temporary import sha256_of, temporary_folder
from launcher.user_folder import NAME, pack_folder
from workloads.layout import Layout
from workloads.params import ParamInfo
from workloads.target import Target, parse_target

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


def look_at_user_workload(workload: str, cluster_name: str | None) -> list[ParamInfo]:
    """The parameters of a workload of the user's, which a host imports.

    Args:
        workload: as `./my_file.py:run`, relative to the folder one is in.
        cluster_name: None: the only cluster that is up.

    Raises:
        UserError: there is no such function, or its module cannot be imported.
    """
    target, cluster = parse_target(workload), choose_cluster(cluster_name)
    assert target is not None
    require_file(target, Path.cwd())
    code = our_code(cluster)
    seen = inspect(cluster, workload, None, choose_layout(cluster, None), pack_user_folder(Path.cwd()), code)
    return [ParamInfo(**{**param, "choices": tuple(param["choices"])}) for param in seen["params"]]


def inspect(
    cluster: Cluster, workload: str, settings: Mapping[str, str] | None, layout: Layout, folder: Packed, code: Code
) -> Message:
    """Has a host import what is the user's in a workload; see `launcher.rank.inspect_workload`.

    Args:
        cluster: that is up.
        workload: as submitted.
        settings: `{parameter: text}`; None: only its parameters are wanted.
        layout: that the config must fit.
        folder: of the user.
        code: of our packages.

    Returns:
        `params`, and `config` where there are settings.

    Raises:
        UserError: what is wrong with it.
    """
    files, paths = folder
    request = {
        "op": "inspect",
        "workload": workload,
        "settings": None if settings is None else dict(settings),
        "num_hosts": layout.num_hosts,
        "devices_per_host": layout.devices_per_host,
        "folder": [files[FOLDER].sha256, files[FOLDER].name],
        "code": code.digest,
    }
    answer = ask_with_bytes(cluster, request, code, paths, INSPECTION_TIMEOUT_S)
    if "refused" in answer:
        raise UserError(answer["refused"])
    return answer
