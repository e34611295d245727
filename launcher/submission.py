"""From a command line to a queued job: everything that can be refused is refused here, before anything starts."""

import dataclasses
import datetime
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.place_code import Code
from cluster.record import Cluster
from launcher.choose import choose_cluster, choose_layout, choose_name
from launcher.command import NO_PARAMETERS
from launcher.ended_job import ended_job
from launcher.errors import FailureError, UserError
from launcher.faults import check_faults, parse_fault
from launcher.inputs import Inputs, find_inputs, kept_inputs, settings_again
from launcher.interactive import WORKLOAD
from launcher.job import JobOptions, JobSpec
from launcher.protocol import Message
from launcher.record_names import record_name
from launcher.sending import ask_with_bytes, our_code
from launcher.storage import storage_root
from launcher.user_submission import default_name
from launcher.went_down import went_down
from workloads.layout import Layout
from workloads.versions import versions

OF_COMMANDS = {"max_failures", "max_preemptions", "program_barrier", "watch_launches"}  # options that `run` has too


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
    requirements: Path | None = None


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A job that may be sent, with the bytes that its hosts will need.

    Attributes:
        lost: of a job that goes on because its cluster was lost: why; '' of one that a person resumes.
    """

    cluster: Cluster
    spec: JobSpec
    code: Code
    files: Mapping[str, Path]
    resume: bool = False
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lost: str = ""


def prepare(request: Request) -> Prepared:
    """Checks everything that can be checked on the client.

    Raises:
        UserError: with the parameter, what was given, and what would fit; or the cluster runs another version.
    """
    cluster = choose_cluster(request.cluster)
    layout = choose_layout(cluster, request.num_hosts)
    name = choose_name(request.name, default_name(request.workload))
    faults = [parse_fault(text) for text in request.faults]
    storage = storage_root(cluster.spec.storage_path)
    check_faults(faults, layout.num_hosts, layout.devices_per_host, cluster.spec.provider.owns_ray, storage)
    code = our_code(cluster)
    inputs = find_inputs(cluster, request.workload, request.settings, layout, code, request.requirements)
    told = tuple(fault.to_json() for fault in faults)
    spec = new_spec(name, request.workload, inputs, layout, code, request.options, faults=told)
    return Prepared(cluster, spec, code, inputs.paths)


def new_spec(
    name: str, workload: str, inputs: Inputs, layout: Layout, code: Code, options: JobOptions, **more: Any
) -> JobSpec:
    """A job that has never run, submitted now.

    Args:
        name, workload: of the job.
        inputs: that it is given.
        layout: that it runs on.
        code: of our packages.
        options: of any job.
        more: fields of `JobSpec` that not every job has.
    """
    return JobSpec(
        name=name,
        job_id=secrets.token_hex(6),
        workload=workload,
        settings=inputs.settings,
        config=inputs.config,
        num_hosts=layout.num_hosts,
        code_digest=code.digest,
        files=inputs.files,
        versions=versions(),
        submitted=datetime.datetime.now().astimezone().isoformat(timespec="milliseconds"),
        **more,
        **dataclasses.asdict(options),
    )


def prepare_resume(
    name: str,
    settings: Mapping[str, str],
    cluster_name: str | None,
    num_hosts: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Prepared:
    """Checks a job that has ended and is to go on from its newest good checkpoint, with its own config and seed.

    Args:
        name: of the job.
        settings: parameters to change, such as a larger `num_draws`.
        cluster_name: where to run it; None: the only cluster that is up.
        num_hosts: None: as many as before, or all that the cluster has.
        options: fields of `JobOptions` that are to be others from now on.

    Raises:
        UserError: no such job, it has not ended, a parameter does not fit, or the cluster runs another version.
    """
    cluster = choose_cluster(cluster_name)
    folder = ended_job(name, cluster, settings)
    old = folder.spec()
    if old.workload == WORKLOAD:
        raise UserError(f"--resume {name}: it was a gang, and its arrays are gone; make another from Python")
    options = options or {}
    if old.command is not None and (odd := sorted(options.keys() - OF_COMMANDS)):
        raise UserError(f"--{odd[0].replace('_', '-')}: job {old.name!r} runs a command, which saves for itself")
    as_before = min(old.num_hosts, cluster.spec.num_hosts)
    layout = choose_layout(cluster, as_before if num_hosts is None else num_hosts)
    kept = kept_inputs(folder, old, settings)
    paths = {old.files[param].sha256: path for param, path in kept.items()}
    if old.command is not None and settings:
        raise UserError(f"--set: job {old.name!r} runs a command, which has no parameters")
    code = our_code(cluster)
    if old.command is not None:  # again, in the folder that was shipped with it
        inputs = Inputs(config=old.config, settings=old.settings, files=old.files, paths=paths)
    else:
        travelled = {param: file for param, file in old.files.items() if param in NO_PARAMETERS}
        files = {param: str(path) for param, path in kept.items() if param not in travelled}
        given = {**settings_again(old.workload, old.settings), **files, **settings}
        packed = (travelled, paths) if travelled else None
        inputs = find_inputs(cluster, old.workload, given, layout, code, kept=packed)
    spec = dataclasses.replace(
        old,
        settings=inputs.settings,
        config=inputs.config,
        num_hosts=layout.num_hosts,
        code_digest=code.digest,
        files=inputs.files,
        versions=versions(),
        **options,
    )
    values = secret_values(old.command.secrets) if old.command is not None else {}
    return Prepared(cluster, spec, code, inputs.paths, resume=True, secrets=values)


def secret_values(names: Sequence[str]) -> dict[str, str]:
    """Values of variables of this process.

    Raises:
        UserError: one is not set.
    """
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise UserError(f"--env {missing[0]}: it is not set here; set it, or give --env {missing[0]}=VALUE")
    return {name: os.environ[name] for name in names}


def send(prepared: Prepared, *, wait: bool) -> Message:
    """Submits the job, after whatever bytes the cluster does not have yet; `name` of the answer is its record's here.

    Args:
        prepared: the job.
        wait: queue behind other jobs; else be refused if hosts are not free.
    """
    request = {"op": "submit", "spec": prepared.spec.to_json(), "wait": wait, "resume": prepared.resume,
               "lost": prepared.lost, "secrets": dict(prepared.secrets)}  # fmt: skip
    try:
        answer = ask_with_bytes(prepared.cluster, request, prepared.code, prepared.files)
        return answer | {"name": record_name(prepared.spec.name, prepared.spec.job_id)}
    except FailureError as error:
        if farewell := went_down(prepared.cluster):
            raise UserError(f"{farewell}; `spmd-launch up FILE` brings it up again") from error
        raise


def describe(spec: JobSpec) -> str:
    """The job's parameters that are not at their default, for one line."""
    given = {**spec.settings, **{param: file.name for param, file in spec.files.items() if param not in NO_PARAMETERS}}
    return " ".join(f"{key}={value}" for key, value in given.items()) or "defaults"
