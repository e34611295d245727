"""The default text: the Python standard library's own sources. Imports no JAX; runs where the job is submitted."""

import sysconfig
import tokenize
from pathlib import Path

MAX_CHARACTERS = 1_500_000


def write_default(folder: Path) -> Path:
    """Writes the top-level modules' sources, in the order of their names, into one file.

    Modules are whole, and as many as fit into 1.5 million characters. Those whose names begin with an underscore are
    left out: among them are generated ones that hold paths of this machine.

    Args:
        folder: where the file goes; it exists.

    Returns:
        The file's path. Equal bytes for equal versions of Python.
    """
    library = Path(sysconfig.get_path("stdlib"))
    pieces: list[str] = []
    room = MAX_CHARACTERS
    for path in sorted(library.glob("[!_]*.py"), key=lambda path: path.name):
        with tokenize.open(path) as file:  # honours a coding line
            text = file.read()
        if len(text) > room:
            break
        pieces.append(text)
        room -= len(text)
    target = folder / "python-stdlib.txt"
    target.write_text("".join(pieces), encoding="utf-8", newline="\n")
    return target
