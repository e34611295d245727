"""What `run` starts on every host: a command of the user's, in a copy of their folder."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

FOLDER = "folder"  # the input file that holds the user's folder
REQUIREMENTS = "requirements"  # the input file that locks what the job's environment has
NO_PARAMETERS = (FOLDER, REQUIREMENTS)  # other input files are values of a workload's parameters
PHASE = "script"  # what its rank is said to do
WORKLOAD = "run"  # what such a job has in the place of a workload's name
PYTHON = re.compile(r"python(3(\.\d+)?)?")
EXIT_NO_PROGRAM = 127  # as a shell says it
WITH_VALUE = "WX"  # options of Python's with a value: what follows in the word, or else the next word
WHAT_RUNS = "cm"  # the same, and all that comes after it is not for Python
LONG_WITH_VALUE = "--check-hash-based-pycs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command line, and the variables that it is given.

    Attributes:
        words: of the command, the program first.
        variables: `{name: value}`.
        secrets: names of variables whose values are on no record; they live in memory alone.
        toolkit: whether our package `workloads` can be imported by it.
    """

    words: Sequence[str]
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    secrets: Sequence[str] = ()
    toolkit: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Command":
        return cls(**{**value, "words": tuple(value["words"]), "secrets": tuple(value["secrets"])})


class NoProgramError(Exception):
    """A command cannot be started on this host; the message has its first word and why."""


def is_python(program: str) -> bool:
    """Whether a command's first word is a Python: `python`, `python3.12`, `/opt/jax/bin/python`."""
    return PYTHON.fullmatch(PurePosixPath(program).name) is not None


def interpreter_words(words: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """Splits a Python's command line into what is for Python and what it runs (`x.py ...`, `-m x ...`, `-c x ...`).

    Options may be joined, as in `-um x` or `-mx`; what runs comes apart from them, as `-m x`.

    Returns:
        Both, or None where it runs neither: `python -V`, or a script from standard input.
    """
    options = [words[0]]
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            return options, [word, *rest]
        if word == "-":
            return None
        if word == "--":
            return (options, rest) if rest else None
        flags, letter, value = _split_options(word)
        if letter and letter in WHAT_RUNS:
            what = [value] if value else rest[:1]
            after = rest if value else rest[1:]
            return ([*options, *([f"-{flags}"] if flags else [])], [f"-{letter}", *what, *after]) if what else None
        options.append(word)
        if (letter or word == LONG_WITH_VALUE) and not value:
            options += rest[:1]
            rest = rest[1:]
    return None


def _split_options(word: str) -> tuple[str, str, str]:
    """Options in one word: those without a value, the one that has a value, its value as far as it is in the word."""
    if word.startswith("--"):
        return "", "", ""
    for place, letter in enumerate(word[1:], start=1):
        if letter in WITH_VALUE + WHAT_RUNS:
            return word[1:place], letter, word[place + 1 :]
    return word[1:], "", ""
