"""What is different for a job with code of the user's: their folder travels, and a host looks at their functions."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

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
from workloads.errors import ConfigError
from workloads.installed import InstalledWorkload, find_installed
from workloads.layout import Layout
from workloads.params import ParamInfo
from workloads.registry import WORKLOADS, no_such_workload
from workloads.target import Target, parse_target

INSPECTION_TIMEOUT_S = 180.0
Packed = tuple[Mapping[str, InputFile], Mapping[str, Path]]  # input files by parameter, their paths by sha256


def pack_user_folder(folder: Path, paths: Sequence[str] | None = None) -> Packed:
    """The user's folder as an input file; its arguments are as of `pack_folder`."""
    archive = temporary_folder() / NAME
    archive.write_bytes(pack_folder(folder, paths=paths))
    digest = sha256_of(archive)
    return {FOLDER: InputFile(name=NAME, sha256=digest, num_bytes=archive.stat().st_size)}, {digest: archive}


def _require_file(target: Target, folder: Path) -> None:
    """Refuses a file that is not there, before anything is sent.

    Raises:
        UserError: with the path.
    """
    path = Path(os.path.abspath(folder / target.place))  # a link in the folder travels as what it leads to
    if target.is_file and not path.is_relative_to(folder):
        raise UserError(f"{target.place} lies outside of {folder}, which is what travels: go to its folder")
    if target.is_file and not path.is_file():
        raise UserError(f"there is no file {target.place} in {folder}")


def default_name(workload: str) -> str:
    """What a job is called by default: `my-workload` of `./my_workload.py:run`."""
    target = parse_target(workload)
    word = target.stem if target else workload
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:40] or "workload"


def look_at_user_workload(workload: str, cluster_name: str | None, requirements: Path | None) -> list[ParamInfo]:
    """The parameters of a workload of the user's or of an installed package, which a host imports.

    Args:
        workload: as `./my_file.py:run`, relative to the folder one is in; or a name.
        cluster_name: None: the only cluster that is up.
        requirements: a file of what it needs besides; None: nothing.

    Raises:
        UserError: there is no such function, or its module cannot be imported.
    """
    cluster = choose_cluster(cluster_name)
    packed = folder_with([workload], cluster, requirements) if parse_target(workload) else None
    seen = inspect(cluster, workload, None, choose_layout(cluster, None), packed, our_code(cluster))
    return [ParamInfo(**{**param, "choices": tuple(param["choices"])}) for param in seen["params"]]


def require_installed(workload: str) -> InstalledWorkload:
    """What a package that is installed here offers under that name.

    Raises:
        UserError: none does, with the nearest name there is; or several do.
    """
    try:
        found = find_installed(workload)
    except ConfigError as error:
        raise UserError(str(error)) from error
    if found is None:
        raise UserError(no_such_workload(workload))
    return found


def folder_with(functions: Iterable[str], cluster: Cluster, requirements: Path | None) -> Packed:
    """The folder that one is in, packed, which has the files of these functions.

    Args:
        functions: as submitted.
        cluster: that is up.
        requirements: a file of what they need besides, of which a host makes a list that goes along; None: nothing.

    Raises:
        UserError: it has not, or it is too large; there is no such set of packages.
    """
    for text in functions:
        target = parse_target(text)
        assert target is not None
        _require_file(target, Path.cwd())
    files, paths = pack_user_folder(Path.cwd())
    if requirements is None:
        return files, paths
    lock, place = ask_for_lock(cluster, requirements, None, {})
    return {**files, **lock}, {**paths, **place}


def inspect(
    cluster: Cluster,
    workload: str,
    settings: Mapping[str, str] | None,
    layout: Layout,
    packed: Packed | None,
    code: Code,
) -> Message:
    """Has hosts import what is the user's in a workload; see `launcher.rank.inspect_workload`.

    Args:
        cluster: that is up.
        workload: as submitted.
        settings: `{parameter: text}`; None: only its parameters are wanted.
        layout: that the config must fit.
        packed: the user's folder, and what their environment is to have, if that is another than the hosts'; None: all
            is installed on the hosts, each of which is asked.
        code: of our packages.

    Returns:
        `params`, and `config` where there are settings.

    Raises:
        UserError: what is wrong with it, and where hosts do not say the same on which.
    """
    files, paths = packed or ({}, {})
    folder, lock = files.get(FOLDER), files.get(REQUIREMENTS)
    request = {
        "op": "inspect",
        "workload": workload,
        "settings": None if settings is None else dict(settings),
        "num_hosts": layout.num_hosts,
        "devices_per_host": layout.devices_per_host,
        "folder": [folder.sha256, folder.name] if folder else None,
        "requirements": [lock.sha256, lock.name] if lock else None,
        "every_host": parse_target(workload) is None and workload not in WORKLOADS,
        "code": code.digest,
    }
    timeout_s = INSPECTION_TIMEOUT_S + (MAKE_TIMEOUT_S if lock else 0.0)
    answers = ask_with_bytes(cluster, request, code, paths, timeout_s)["hosts"]
    if problem := disagreement(workload, answers):
        raise UserError(problem)
    answer: Message = next(iter(answers.values()))
    return answer


def disagreement(workload: str, answers: Mapping[str, Message]) -> str:
    """Why a workload will not do, or '': hosts have it not, refuse it, or have it from different packages.

    Args:
        workload: as submitted.
        answers: by host, see `launcher.rank.inspect_workload`.
    """
    if absent := [host for host, answer in answers.items() if "absent" in answer]:
        return (
            f"no package on {', '.join(absent)} offers a workload {workload!r}, as one does here: install it on every "
            f"host, or let its folder travel: submit ./FILE.py:FUNCTION"
        )
    for answer in answers.values():
        if "refused" in answer:
            return str(answer["refused"])
    packages = {host: answer["package"] for host, answer in answers.items()}
    if len(set(packages.values())) > 1:
        listed = ", ".join(f"{package} on {host}" for host, package in packages.items())
        return f"workload {workload!r}: every host must have the same package; it is of {listed}"
    return ""
