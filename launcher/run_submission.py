"""From `run -- python train.py` to a queued job."""

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

from launcher.choose import choose_cluster, choose_layout, choose_name
from launcher.command import WORKLOAD, Command, interpreter_words, is_python
from launcher.errors import UserError
from launcher.inputs import Inputs
from launcher.job import JobOptions
from launcher.requirements import ask_for_lock
from launcher.sending import our_code
from launcher.submission import Prepared, new_spec, secret_values
from launcher.user_folder import travelling_files
from launcher.user_submission import pack_user_folder

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
    requirements: Path | None = None,
    toolkit: bool = False,
) -> Prepared:
    """Checks everything that can be checked on the client, and packs the folder.

    Args:
        words: the command.
        folder: that it is to find itself in.
        env: `KEY=VALUE`, or `KEY`, whose value is taken from here and put on no record.
        options: of the job.
        cluster_name, name, num_hosts: None: the only cluster, `run-N`, all hosts.
        requirements: a file; None: it runs in an environment that the hosts have.
        toolkit: whether it can import our package `workloads`.

    Raises:
        UserError: with what was given and what would do.
    """
    cluster = choose_cluster(cluster_name)
    layout = choose_layout(cluster, num_hosts)
    job_name = choose_name(name, WORKLOAD)
    command = dataclasses.replace(parse_command(words, env), toolkit=toolkit)
    travelling = travelling_files(folder)
    require_program(words, folder, travelling)
    values = secret_values(command.secrets)
    code = our_code(cluster)
    files, paths = pack_user_folder(folder, travelling)
    if requirements is not None:
        lock, place = ask_for_lock(cluster, requirements, command, values)
        files, paths = {**files, **lock}, {**paths, **place}
    inputs = Inputs(config={}, settings={}, files=files, paths=paths)
    spec = new_spec(job_name, WORKLOAD, inputs, layout, code, options, command=command)
    return Prepared(cluster, spec, code, paths, secrets=values)


def require_program(words: Sequence[str], folder: Path, travelling: Sequence[str]) -> None:
    """Refuses a program or a Python's script that is to come from the folder and is not there, or does not travel.

    Raises:
        UserError: with its path.
    """
    split = interpreter_words(words) if is_python(words[0]) else None
    script = split[1][0] if split is not None else ""
    if "/" in words[0]:
        _require_file(words[0], folder, travelling, executable=True)
    if script and not script.startswith("-"):
        _require_file(script, folder, travelling, executable=False)


def _require_file(word: str, folder: Path, travelling: Sequence[str], *, executable: bool) -> None:
    path = folder / word
    if Path(word).is_absolute():
        return  # on the hosts
    if not path.exists():
        raise UserError(f"there is no {word} in {folder}, the folder that travels to the hosts")
    if path.is_file() and executable and not os.access(path, os.X_OK):
        raise UserError(f"{word} cannot be executed: chmod +x {word}, or name the program that reads it")
    place = Path(os.path.normpath(word))
    ways = {str(part) for part in (place, *place.parents)}  # a link to its folder travels as one
    if path.is_file() and ways.isdisjoint(travelling):
        raise UserError(f"{word} does not travel to the hosts: it lies outside of {folder}, or Git ignores it")


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
