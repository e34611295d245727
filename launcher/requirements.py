"""`--requirements FILE`: the file as the hosts' uv gets it, and the list of packages that the head makes of it."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.record import Cluster
from launcher.command import REQUIREMENTS, Command
from launcher.errors import UserError
from launcher.job import InputFile
from launcher.protocol import Connection
from launcher.temporary import sha256_of, temporary_folder

ANSWER_S = 660.0  # a little more than the head gives uv
NAME = "requirements.lock"
INCLUDE = re.compile(r"(-r|--requirement|-c|--constraint)[\s=]*([^\s=].*)")
# What says where packages are to be had; the rest of a requirements file is packages.
INDEX = re.compile(r"(-i|--index-url|--extra-index-url|-f|--find-links|--no-index|--no-binary|--only-binary)\b")
LOCAL = re.compile(r"(-e\b|--editable\b|\.{1,2}/|\.$|(-f|--find-links)[\s=]+(?![\w+]+://|/|\$))")
LITERAL_SECRET = re.compile(r"https?://(?!\$\{)[^/\s@]+@")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Requirements:
    """A requirements file with those that it includes.

    Attributes:
        name: of the file.
        lines: without comments and includes.
        constraints: lines of the files that it includes as constraints.
    """

    name: str
    lines: Sequence[str]
    constraints: Sequence[str] = ()

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def options(self) -> list[str]:
        return [line for line in self.lines if INDEX.match(line)]

    @property
    def hashed(self) -> bool:
        """Whether it is a lock already."""
        return any("--hash" in line for line in self.lines)


def read_requirements(path: Path) -> Requirements:
    """Reads a file, and what it includes.

    Raises:
        UserError: it cannot be read, or has what cannot travel: a path of this machine, a password.
    """
    lines: list[str] = []
    constraints: list[str] = []
    _read(path, lines, constraints, ())
    return Requirements(name=path.name, lines=lines, constraints=constraints)


def _read(path: Path, lines: list[str], constraints: list[str], outer: tuple[Path, ...]) -> None:
    where = "--requirements " + ": ".join(map(str, (*outer[:1], path)))
    if path.resolve() in [file.resolve() for file in outer]:
        raise UserError(f"{where} includes itself")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: {getattr(error, 'strerror', None) or 'it is no text'}") from error
    for raw in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        include = INCLUDE.fullmatch(line)
        if include is None:
            if line:
                _require_good_line(where, line)
                lines.append(line)
            continue
        if "://" in include[2]:
            raise UserError(f"{where}: {line!r}: fetch that file and name it here")
        into = lines if include[1] in ("-r", "--requirement") else constraints
        _read(path.parent / include[2].strip(), into, constraints, (*outer, path))


def _require_good_line(where: str, line: str) -> None:
    if LOCAL.match(line):
        raise UserError(
            f"{where}: {line!r} is a path of this machine, which the hosts do not have; the folder that "
            f"you are in travels with the job, and what it has can be imported"
        )
    if LITERAL_SECRET.search(line):
        shown = LITERAL_SECRET.sub("https://****@", line)
        raise UserError(
            f"{where}: {shown!r} has a name or password, which would be on record: write ${{NAME}} in "
            f"its place, and give --env NAME, or set NAME on the hosts"
        )


def refuse_for_shipped(workload: str, path: Path | None) -> None:
    """Refuses requirements for what is no code of the user's.

    Raises:
        UserError: there are some.
    """
    if path is not None:
        raise UserError(f"--requirements is for code of yours; {workload!r} has all that it needs")


def ask_for_lock(
    cluster: Cluster, path: Path, command: Command | None, secrets: Mapping[str, str]
) -> tuple[dict[str, InputFile], dict[str, Path]]:
    """Has a host resolve a requirements file: the list of what all hosts are to install, as an input file.

    Args:
        cluster: that is up.
        path: of the file.
        command: whose variables uv gets; None: it is for a workload, which needs what the hosts' Python has, too.
        secrets: values of its secret variables.

    Returns:
        The input file by the parameter's name, and its path by its sha256.

    Raises:
        UserError: there is no such set of versions, in the words of uv.
    """
    asked = read_requirements(path)
    variables = {**command.variables, **secrets} if command is not None else {}
    request = {
        "op": "lock", "requirements": dataclasses.asdict(asked), "variables": variables, "beneath": command is None,
    }  # fmt: skip
    with Connection(cluster.socket, timeout_s=ANSWER_S) as connection:
        answer = connection.ask(request)
    if "refused" in answer:
        raise UserError(f"--requirements {path}: {answer['refused']}")
    lock = temporary_folder() / NAME
    lock.write_text(answer["lock"])
    digest = sha256_of(lock)
    return {REQUIREMENTS: InputFile(name=NAME, sha256=digest, num_bytes=lock.stat().st_size)}, {digest: lock}
