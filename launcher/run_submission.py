"""From `run -- python train.py` to a queued job."""

import dataclasses
import datetime
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from launcher.code_copy import digest_code, pack, read_code, source_root
from launcher.command import WORKLOAD, Command
from launcher.errors import UserError
from launcher.job import JobOptions, JobSpec
from launcher.submission import Prepared, choose_cluster, choose_layout, choose_name, secret_values
from launcher.user_submission import pack_user_folder
from launcher.version_skew import require_same_launcher
from workloads.versions import versions

OURS = ("SPMD_LAUNCH_", "RAY_")


def prepare_run(
    words: Sequence[str],
    *,
    folder: Path,
    env: Sequence[str],
    options: JobOptions,
    cluster_name: str | None,
    name: str | None,
    num_hosts: int | None,
) -> Prepared:
    """Checks everything that can be checked on the client, and packs the folder.

    Args:
        words: the command.
        folder: that it is to find itself in.
        env: `KEY=VALUE`, or `KEY`, whose value is taken from here and put on no record.
        options: of the job.
        cluster_name, name, num_hosts: None: the only cluster, `run-N`, all hosts.

    Raises:
        UserError: with what was given and what would do.
    """
    cluster = choose_cluster(cluster_name)
    layout = choose_layout(cluster, num_hosts)
    job_name = choose_name(name, WORKLOAD)
    command = parse_command(words, env)
    values = secret_values(command.secrets)
    code = read_code(source_root())
    require_same_launcher(cluster, code)
    files, paths = pack_user_folder(folder)
    spec = JobSpec(
        name=job_name,
        job_id=secrets.token_hex(6),
        workload=WORKLOAD,
        settings={},
        config={},
        num_hosts=layout.num_hosts,
        code_digest=digest_code(code),
        files=files,
        versions=versions(),
        submitted=datetime.datetime.now().astimezone().isoformat(timespec="milliseconds"),
        command=command,
        **dataclasses.asdict(options),
    )
    return Prepared(cluster, spec, pack(code), paths, secrets=values)


def parse_command(words: Sequence[str], env: Sequence[str]) -> Command:
    """The command with its variables.

    Raises:
        UserError: a variable has no name, or one that is ours to set.
    """
    variables, names = {}, []
    for text in env:
        key, equals, value = text.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key) or "\0" in value:
            raise UserError(f"--env {text!r}: it must be KEY=VALUE or KEY, with a KEY of letters, digits and '_'")
        if key.startswith(OURS):
            raise UserError(f"--env {key}: names that begin with {' or '.join(OURS)} are not the user's to set")
        if equals:
            variables[key] = value
        else:
            names.append(key)
    return Command(words=tuple(words), variables=variables, secrets=tuple(names))
