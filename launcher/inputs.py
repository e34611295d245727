"""What a job is given, checked: every parameter's value, the files that parameters name, the user's folder."""

import dataclasses
import importlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.place_code import Code
from cluster.record import Cluster
from launcher.command import NO_PARAMETERS
from launcher.errors import UserError
from launcher.job import InputFile, JobSpec
from launcher.job_folder import JobFolder
from launcher.requirements import refuse_for_shipped
from launcher.temporary import sha256_of, temporary_folder
from launcher.user_submission import Packed, folder_with, inspect, require_installed
from workloads.errors import ConfigError
from workloads.layout import Layout
from workloads.params import file_params, function_params
from workloads.registry import WORKLOADS, checked_config
from workloads.target import parse_target

HOST = "host:"  # before a path on the hosts


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


def find_inputs(
    cluster: Cluster,
    workload: str,
    settings: Mapping[str, str],
    layout: Layout,
    code: Code,
    requirements: Path | None = None,
    kept: Packed | None = None,
) -> Inputs:
    """Everything about a job's parameters, checked here or, where code of the user's is needed for it, on a host.

    Args:
        cluster: that is up.
        workload: as submitted.
        settings: `{parameter: text}`.
        layout: that the config must fit.
        code: of our packages.
        requirements: a file of what the user's code needs besides; None: nothing.
        kept: the user's folder, and the list of its packages, as an earlier run of the job had them; None: the folder
            that one is in, if it is needed.

    Raises:
        UserError: with the parameter, what was given, and what would fit; or what is wrong with the user's function.
    """
    if workload in WORKLOADS:
        return _shipped_inputs(cluster, workload, settings, layout, code, requirements, kept)
    if parse_target(workload) is None:
        require_installed(workload)
    functions = [text for text in settings.values() if (target := parse_target(text)) and target.is_file]
    if parse_target(workload) is not None:
        functions = [workload, *functions]
    packed = _packed(cluster, workload, functions, requirements, kept)
    seen = inspect(cluster, workload, settings, layout, packed, code)
    files, paths = packed or ({}, {})
    return Inputs(config=seen["config"], settings=dict(settings), files=files, paths=paths)


def settings_again(workload: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of a job on record as its user gave them, to be checked again: what they name of files is not here.

    Args:
        workload: as submitted.
        settings: of the record, where a file of the hosts is a path without `host:`.
    """
    files = file_params(WORKLOADS[workload].config_class()) if workload in WORKLOADS else {}
    on_hosts = {param: f"{HOST}{text}" for param, text in settings.items() if param in files and "://" not in text}
    return {**settings, **on_hosts}


def kept_inputs(folder: JobFolder, spec: JobSpec, given: Collection[str]) -> dict[str, Path]:
    """Where a job's record has the files that the job was given, by the parameter that names them.

    Args:
        folder: of the job.
        spec: of the job, as it was.
        given: parameters that are given anew, whose files do not matter.

    Raises:
        UserError: a file is not there, or not what it was.
    """
    kept = _kept_paths(folder, spec)
    if lacks := lacking_inputs(folder, spec, given):
        param, path = lacks[0], kept[lacks[0]]
        storage = folder.job().get("storage")
        nor = f", and no good copy can be read from here in {storage}" if storage else ""
        anew = "" if param in NO_PARAMETERS else f", or give it anew: --set {param}=FILE"
        raise UserError(
            f"--resume {spec.name}: the record has not the {param} that the job was given: {path} should have "
            f"sha256 {spec.files[param].sha256[:16]}, and has {_digest(path)[:16]}{nor}; put it there{anew}"
        )
    return kept


def lacking_inputs(folder: JobFolder, spec: JobSpec, given: Collection[str]) -> list[str]:
    """Parameters whose files the record has not, or not as they were; its arguments are those of `kept_inputs`."""
    kept = {param: path for param, path in _kept_paths(folder, spec).items() if param not in given}
    return [param for param, path in kept.items() if _digest(path) != spec.files[param].sha256]


def _kept_paths(folder: JobFolder, spec: JobSpec) -> dict[str, Path]:
    return {param: folder.path / "inputs" / file.sha256 / file.name for param, file in spec.files.items()}


def _digest(path: Path) -> str:
    return sha256_of(path) if path.is_file() else "nothing"


def _packed(
    cluster: Cluster, workload: str, functions: Sequence[str], requirements: Path | None, kept: Packed | None
) -> Packed | None:
    """What travels of the user's, or None if nothing is theirs."""
    if kept is None and functions:
        return folder_with(functions, cluster, requirements)
    refuse_for_shipped(workload, requirements)
    return kept


def _shipped_inputs(
    cluster: Cluster,
    workload: str,
    settings: Mapping[str, str],
    layout: Layout,
    code: Code,
    requirements: Path | None,
    kept: Packed | None,
) -> Inputs:
    config = _check_config(workload, settings, layout)
    rest, files, paths = _input_files(file_params(type(config)), settings)
    functions = [getattr(config, param) for param in function_params(config)]
    if packed := _packed(cluster, workload, functions, requirements, kept if functions else None):
        inspect(cluster, workload, settings, layout, packed, code)
        files, paths = {**files, **packed[0]}, {**paths, **packed[1]}
    return Inputs(config=dataclasses.asdict(config), settings=rest, files=files, paths=paths)


def _check_config(name: str, settings: Mapping[str, str], layout: Layout) -> Any:
    try:
        return checked_config(name, settings, layout)
    except ConfigError as error:
        raise UserError(str(error)) from error


def _input_files(
    params: Mapping[str, str | None], settings: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, InputFile], dict[str, Path]]:
    """Splits file parameters from the rest: `(settings, input files by parameter, paths by sha256)`.

    A URL and `host:/path` are read on the hosts and stay settings.
    """
    rest, files, paths = dict(settings), {}, {}
    for param, maker in params.items():
        text = settings.get(param)
        if text is None and maker is None:
            continue
        if text is not None and ("://" in text or text.startswith(HOST)):
            rest[param] = text.removeprefix(HOST)
            continue
        path = Path(text).expanduser() if text is not None else _make_default(str(maker))
        if not path.is_file():
            raise UserError(f"{param}={text}: there is no such file here (a file on the hosts: {param}=host:/path)")
        digest = sha256_of(path)
        files[param] = InputFile(name=path.name, sha256=digest, num_bytes=path.stat().st_size)
        paths[digest] = path
        rest.pop(param, None)
    return rest, files, paths


def _make_default(maker: str) -> Path:
    """Freezes a workload's default input."""
    module, _, function = maker.partition(":")
    path: Path = getattr(importlib.import_module(module), function)(temporary_folder())
    return path
