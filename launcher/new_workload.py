"""A workload to start from: two files in the folder that one is in, after those in `workloads/starter`."""

import importlib.util
import keyword
import os
import re
from pathlib import Path

import workloads
from launcher.errors import UserError

STARTER = Path(workloads.__file__).parent / "starter"
STEM = "my_workload"  # what they are called there
PREFIXES = ("", "test_")


def write_workload(name: str, folder: Path) -> list[Path]:
    """Writes NAME.py and test_NAME.py, with `_` for each `-` of the name.

    Args:
        name: of the workload.
        folder: where they go.

    Returns:
        The two paths.

    Raises:
        UserError: it cannot be a module's name, it would hide an installed one, or a file is there: nothing is written.
    """
    module = _module_name(name)
    paths = [folder / f"{prefix}{module}.py" for prefix in PREFIXES]
    if there := [path.name for path in paths if os.path.lexists(path)]:
        raise UserError(f"there is a {' and a '.join(there)} here, and nothing is overwritten; choose another name")
    if importlib.util.find_spec(module) is not None:
        raise UserError(f"{name!r}: Python has a module {module!r}, which {module}.py would hide; choose another name")
    for path, prefix in zip(paths, PREFIXES, strict=True):
        text = (STARTER / f"{prefix}{STEM}.py").read_text()
        try:
            with path.open("x") as file:
                file.write(text.replace(STEM, module))
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}") from error
    return paths


def _module_name(name: str) -> str:
    module = name.replace("-", "_")
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", module) and not keyword.iskeyword(module):
        return module
    close = re.sub(r"[^A-Za-z0-9]+", "_", name.removesuffix(".py")).strip("_")
    hint = f", as {close}" if close.isidentifier() and not keyword.iskeyword(close) else ""
    raise UserError(f"{name!r} is no name for a module of Python: letters, digits, '-' and '_', first a letter{hint}")
