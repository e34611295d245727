"""From a command line to a queued job: everything that can be refused is refused here, before anything starts."""

import dataclasses
import datetime
import importlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.record import Cluster, cluster_names, running_clusters
from launcher.code_copy import CodeFile, digest_code, pack, read_code, source_root
from launcher.command import FOLDER
from launcher.errors import FailureError, UserError
from launcher.faults import check_faults, parse_fault
from launcher.job import NAME_RULE, InputFile, JobOptions, JobSpec, valid_name
from launcher.job_folder import JobFolder, all_jobs, jobs_folder
from launcher.mirror import fetch_record
from launcher.protocol import Connection, Message
from launcher.record_copy import refresh
from launcher.storage import storage_root
from launcher.temporary import sha256_of, temporary_folder
from launcher.user_submission import Packed, default_name, inspect, pack_user_folder, require_file
from launcher.version_skew import require_same_launcher
from workloads.errors import ConfigError
from workloads.layout import Layout
from workloads.params import ParamInfo, file_params
from workloads.registry import checked_config
from workloads.user import parse_target
from workloads.versions import versions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line said."""

    workload: str
    settings: Mapping[str, str]
    options: JobOptions
    cluster: str | None = None
    name: str | None = None
    num_hosts: int | None = None
    faults: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A job that may be sent, with the bytes that its hosts will need."""

    cluster: Cluster
    spec: JobSpec
    code: bytes
    files: Mapping[str, Path]
    resume: bool = False
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a workload is given.

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


def prepare(request: Request) -> Prepared:
    """Checks everything that can be checked on the client.

    Raises:
        UserError: with the parameter, what was given, and what would fit; or the cluster runs another version.
    """
    cluster = choose_cluster(request.cluster)
    layout = choose_layout(cluster, request.num_hosts)
    target = parse_target(request.workload)
    name = choose_name(request.name, default_name(target) if target else request.workload)
    faults = [parse_fault(text) for text in request.faults]
    check_faults(faults, layout.num_hosts, layout.devices_per_host, cluster.spec.provider.owns_ray)
    code = read_code(source_root())
    if target is not None:
        require_file(target, Path.cwd())
        require_same_launcher(cluster, code)
        folder = pack_user_folder(Path.cwd())
        inputs = _user_inputs(cluster, request.workload, request.settings, layout, folder, code)
    else:
        inputs = _shipped_inputs(request.workload, request.settings, layout)
        require_same_launcher(cluster, code)
    spec = JobSpec(
        name=name,
        job_id=secrets.token_hex(6),
        workload=request.workload,
        settings=inputs.settings,
        config=inputs.config,
        num_hosts=layout.num_hosts,
        faults=tuple(fault.to_json() for fault in faults),
        code_digest=digest_code(code),
        files=inputs.files,
        versions=versions(),
        submitted=datetime.datetime.now().astimezone().isoformat(timespec="milliseconds"),
        **dataclasses.asdict(request.options),
    )
    return Prepared(cluster, spec, pack(code), inputs.paths)


def _shipped_inputs(workload: str, settings: Mapping[str, str], layout: Layout) -> Inputs:
    config = _check_config(workload, settings, layout)
    rest, files, paths = _input_files(file_params(type(config)), settings)
    return Inputs(config=dataclasses.asdict(config), settings=rest, files=files, paths=paths)


def look_at_user_workload(workload: str, cluster_name: str | None) -> list[ParamInfo]:
    """The parameters of a workload of the user's, which a host imports.

    Args:
        workload: as `./my_file.py:run`, relative to the folder one is in.
        cluster_name: None: the only cluster that is up.

    Raises:
        UserError: there is no such function, or its module cannot be imported.
    """
    target, cluster, code = parse_target(workload), choose_cluster(cluster_name), read_code(source_root())
    assert target is not None
    require_file(target, Path.cwd())
    require_same_launcher(cluster, code)
    seen = _ask_a_host(cluster, workload, None, choose_layout(cluster, None), pack_user_folder(Path.cwd()), code)
    return [ParamInfo(**{**param, "choices": tuple(param["choices"])}) for param in seen["params"]]


def _user_inputs(
    cluster: Cluster, workload: str, settings: Mapping[str, str], layout: Layout, folder: Packed, code: list[CodeFile]
) -> Inputs:
    """A host imports the workload and answers for its parameters: nothing of the user's is imported here."""
    seen = _ask_a_host(cluster, workload, settings, layout, folder, code)
    return Inputs(config=seen["config"], settings=dict(settings), files=folder[0], paths=folder[1])


def _ask_a_host(
    cluster: Cluster,
    workload: str,
    settings: Mapping[str, str] | None,
    layout: Layout,
    folder: Packed,
    code: list[CodeFile],
) -> Message:
    files, paths = folder
    file, code_digest = files[FOLDER], digest_code(code)
    blobs = {file.sha256: paths[file.sha256].read_bytes(), code_digest: pack(code)}
    return inspect(cluster, workload, settings, layout, folder=file, code_digest=code_digest, blobs=blobs)


def prepare_resume(name: str, settings: Mapping[str, str], cluster_name: str | None) -> Prepared:
    """Checks a job that has ended and is to go on from its newest good checkpoint, with its own config and seed.

    Args:
        name: of the job.
        settings: parameters to change, such as a larger `num_draws`.
        cluster_name: where to run it; None: the only cluster that is up.

    Raises:
        UserError: no such job, it has not ended, a parameter does not fit, or the cluster runs another version.
    """
    cluster = choose_cluster(cluster_name)
    if valid_name(name):
        refresh(cluster, [name], inputs=True)
    folder = _ended_job(name, cluster)
    old = folder.spec()
    layout = choose_layout(cluster, min(old.num_hosts, cluster.spec.num_hosts))
    kept = {param: folder.path / "inputs" / file.sha256 / file.name for param, file in old.files.items()}
    if old.command is not None:
        return _resumed_command(cluster, old, kept, settings, layout)
    code = read_code(source_root())
    require_same_launcher(cluster, code)
    if FOLDER in old.files:
        packed = old.files, {old.files[FOLDER].sha256: kept[FOLDER]}
        inputs = _user_inputs(cluster, old.workload, {**old.settings, **settings}, layout, packed, code)
    else:
        given = {**old.settings, **{param: str(path) for param, path in kept.items()}, **settings}
        inputs = _shipped_inputs(old.workload, given, layout)
    spec = dataclasses.replace(
        old,
        settings=inputs.settings,
        config=inputs.config,
        num_hosts=layout.num_hosts,
        code_digest=digest_code(code),
        files=inputs.files,
        versions=versions(),
    )
    return Prepared(cluster, spec, pack(code), inputs.paths, resume=True)


def _resumed_command(
    cluster: Cluster, old: JobSpec, kept: Mapping[str, Path], settings: Mapping[str, str], layout: Layout
) -> Prepared:
    """The same command again, in the folder that was shipped with it."""
    assert old.command is not None
    if settings:
        raise UserError(f"--set: job {old.name!r} runs a command, which has no parameters")
    code = read_code(source_root())
    require_same_launcher(cluster, code)
    spec = dataclasses.replace(old, num_hosts=layout.num_hosts, code_digest=digest_code(code), versions=versions())
    paths = {old.files[param].sha256: path for param, path in kept.items()}
    return Prepared(cluster, spec, pack(code), paths, resume=True, secrets=secret_values(old.command.secrets))


def secret_values(names: Sequence[str]) -> dict[str, str]:
    """Values of variables of this process.

    Raises:
        UserError: one is not set.
    """
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise UserError(f"--env {missing[0]}: it is not set here; set it, or give --env {missing[0]}=VALUE")
    return {name: os.environ[name] for name in names}


def _ended_job(name: str, cluster: Cluster) -> JobFolder:
    """The record of a job that may be resumed: it has ended, or its cluster has; from the storage if it is not here."""
    local: JobFolder | None = JobFolder(jobs_folder() / name)
    if local is None or not local.exists():
        local = fetch_record(storage_root(cluster.spec.storage_path), name) if valid_name(name) else None
    if local is None:
        raise UserError(f"--resume {name}: no such job, here or in the storage of {cluster.name!r}")
    alive = Cluster.load(local.job()["cluster"])
    if not local.state().ended and alive is not None and alive.alive():
        raise UserError(f"--resume {name}: the job is {local.state()}; only one that has ended can be resumed")
    return local


def choose_layout(cluster: Cluster, num_hosts: int | None) -> Layout:
    """What a job gets of a cluster.

    Args:
        cluster: that is up.
        num_hosts: asked for; None: all.

    Raises:
        UserError: there are not so many, or not in whole slices.
    """
    num_hosts = cluster.spec.num_hosts if num_hosts is None else num_hosts
    if not 1 <= num_hosts <= cluster.spec.num_hosts:
        raise UserError(f"--num-hosts {num_hosts}: cluster {cluster.name!r} has {cluster.spec.num_hosts} host(s)")
    accelerator = cluster.spec.hardware
    if num_hosts % accelerator.hosts_per_slice:
        raise UserError(
            f"--num-hosts {num_hosts}: a job gets whole slices, and one of {accelerator.name} is "
            f"{accelerator.hosts_per_slice} hosts"
        )
    return Layout(num_hosts=num_hosts, devices_per_host=cluster.spec.devices_per_host)


def _check_config(name: str, settings: Mapping[str, str], layout: Layout) -> Any:
    try:
        return checked_config(name, settings, layout)
    except ConfigError as error:
        raise UserError(str(error)) from error


def send(prepared: Prepared, *, wait: bool) -> Message:
    """Submits the job, after whatever bytes the cluster does not have yet.

    Args:
        prepared: the job.
        wait: queue behind other jobs; else be refused if hosts are not free.
    """
    request = {"op": "submit", "spec": prepared.spec.to_json(), "wait": wait, "resume": prepared.resume,
               "secrets": dict(prepared.secrets)}  # fmt: skip
    with Connection(prepared.cluster.socket) as connection:
        answer = connection.ask(request)
        for digest in answer.get("missing", ()):
            is_file = digest in prepared.files
            data = prepared.files[digest].read_bytes() if is_file else prepared.code
            connection.ask({"op": "blob", "digest": digest, "is_file": is_file}, data)
        return connection.ask(request) if "missing" in answer else answer


def choose_cluster(name: str | None) -> Cluster:
    """The cluster of that name, or the only one that is up.

    Raises:
        UserError: none, or several, or not that one.
        FailureError: its head cannot be reached.
    """
    if name is not None:
        return _named_cluster(name)
    running = running_clusters()
    if len(running) == 1:
        return running[0]
    if not running:
        raise UserError("no cluster is up: `spmd-launch up FILE` starts one")
    names = " or --cluster ".join(cluster.name for cluster in running)
    raise UserError(f"several clusters are up, say which: --cluster {names}")


def _named_cluster(name: str) -> Cluster:
    cluster = Cluster.load(name) if name in cluster_names() else None
    if cluster is not None and (problem := cluster.problem()):
        raise FailureError(f"cluster {name!r} cannot be reached: {problem}")
    if cluster is None or not cluster.alive():
        names = ", ".join(cluster.name for cluster in running_clusters())
        raise UserError(f"no cluster {name!r} is up (up: {names or 'none'})")
    return cluster


def choose_name(given: str | None, workload: str) -> str:
    """The name of a new job: as given, or the first free WORKLOAD-N.

    Raises:
        UserError: it is no name, or taken.
    """
    if given is None:
        taken = {job.name for job in all_jobs()}
        return next(name for number in range(1, 10**6) if (name := f"{workload}-{number}") not in taken)
    if not valid_name(given):
        raise UserError(f"--name {given!r}: {NAME_RULE}")
    if given in cluster_names():
        raise UserError(f"--name {given!r}: a cluster has that name")
    if (jobs_folder() / given).exists():
        raise UserError(
            f"--name {given!r}: there is a job of that name; choose another, or `spmd-launch jobs --prune {given}`"
        )
    return given


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
        if text is not None and ("://" in text or text.startswith("host:")):
            rest[param] = text.removeprefix("host:")
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


def describe(spec: JobSpec) -> str:
    """The job's parameters that are not at their default, for one line."""
    given = {**spec.settings, **{param: file.name for param, file in spec.files.items() if param != FOLDER}}
    return " ".join(f"{key}={value}" for key, value in given.items()) or "defaults"
