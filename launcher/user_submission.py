"""What is different for a workload of the user's: their folder travels, and a host looks at their module."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.host_environment import MAKE_TIMEOUT_S
from cluster.place_code import Code
from cluster.record import Cluster
from launcher.choose import choose_cluster, choose_layout
from launcher.command import FOLDER, REQUIREMENTS
from launcher.errors import UserError
from launcher.job import InputFile
from launcher.protocol import Message
from launcher.requirements import ask_for_lock
from launcher.sending import ask_with_bytes, our_code
from launcher.temporary import sha256_of, temporary_folder
from launcher.user_folder import NAME, pack_folder
from workloads.layout import Layout
from workloads.params import ParamInfo
from workloads.user import Target, parse_target

INSPECTION_TIMEOUT_S = 180.0
Packed = tuple[Mapping[str, InputFile], Mapping[str, Path]]  # input files by parameter, their paths by sha256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a job is given.

    Attributes:
        config: every parameter with its value.
        settings: `{parameter: text}` as given, without files.
        files: that are shipped, by the parameter that names them; the user's folder too.
        paths: where they are here, by sha256.
    """

    config: Mapping[str, Any]
    settings: Mapping[str, str]
    files: Mapping[str, InputFile]
    paths: Mapping[str, Path]


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


def pack_user_workload(cluster: Cluster, requirements: Path | None) -> Packed:
    """The folder one is in, and the list of packages that a requirements file comes to, if there is one."""
    files, paths = pack_user_folder(Path.cwd())
    if requirements is None:
        return files, paths
    lock, place = ask_for_lock(cluster, requirements, None, {})
    return {**files, **lock}, {**paths, **place}


def look_at_user_workload(workload: str, cluster_name: str | None, requirements: Path | None) -> list[ParamInfo]:
    """The parameters of a workload of the user's, which a host imports.

    Args:
        workload: as `./my_file.py:run`, relative to the folder one is in.
        cluster_name: None: the only cluster that is up.
        requirements: a file of what it needs besides; None: nothing.

    Raises:
        UserError: there is no such function, or its module cannot be imported.
    """
    target, cluster = parse_target(workload), choose_cluster(cluster_name)
    assert target is not None
    require_file(target, Path.cwd())
    code = our_code(cluster)
    packed = pack_user_workload(cluster, requirements)
    seen = _inspect(cluster, workload, None, choose_layout(cluster, None), packed, code)
    return [ParamInfo(**{**param, "choices": tuple(param["choices"])}) for param in seen["params"]]


def user_inputs(
    cluster: Cluster, workload: str, settings: Mapping[str, str], layout: Layout, packed: Packed, code: Code
) -> Inputs:
    """What a workload of the user's is given: a host imports it and answers for its parameters; nothing of it is here.

    Args:
        cluster: that is up.
        workload: as submitted.
        settings: `{parameter: text}`.
        layout: that the config must fit.
        packed: the user's folder, and what its environment is to have, if that is another.
        code: of our packages.

    Raises:
        UserError: what is wrong with it.
    """
    seen = _inspect(cluster, workload, settings, layout, packed, code)
    files, paths = packed
    return Inputs(config=seen["config"], settings=dict(settings), files=files, paths=paths)


def _inspect(
    cluster: Cluster, workload: str, settings: Mapping[str, str] | None, layout: Layout, packed: Packed, code: Code
) -> Message:
    """Has a host import the workload: its parameters, and the config that the settings make, if there are any."""
    files, paths = packed
    lock = files.get(REQUIREMENTS)
    request = {
        "op": "inspect",
        "workload": workload,
        "settings": None if settings is None else dict(settings),
        "num_hosts": layout.num_hosts,
        "devices_per_host": layout.devices_per_host,
        "folder": [files[FOLDER].sha256, files[FOLDER].name],
        "requirements": [lock.sha256, lock.name] if lock else None,
        "code": code.digest,
    }
    timeout_s = INSPECTION_TIMEOUT_S + (MAKE_TIMEOUT_S if lock else 0.0)
    answer = ask_with_bytes(cluster, request, code, paths, timeout_s)
    if "refused" in answer:
        raise UserError(answer["refused"])
    return answer
