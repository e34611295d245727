"""From `run -- python train.py` to a queued job."""

import re
from collections.abc import Sequence
from pathlib import Path

from launcher.choose import choose_cluster, choose_layout, choose_name
from launcher.command import WORKLOAD, Command
from launcher.errors import UserError
from launcher.job import JobOptions
from launcher.sending import our_code
from launcher.submission import Prepared, new_spec, secret_values
from launcher.user_submission import Inputs, pack_user_folder

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
    code = our_code(cluster)
    files, paths = pack_user_folder(folder)
    inputs = Inputs(config={}, settings={}, files=files, paths=paths)
    spec = new_spec(job_name, WORKLOAD, inputs, layout, code, options, command=command)
    return Prepared(cluster, spec, code, paths, secrets=values)


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
