"""A workload that is given as a Python function: where the hosts find it, and its config as text."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.errors import UserError
from workloads.params import default_of


def target_of(function: Callable[..., Any], folder: Path) -> str:
    """`./my_file.py:run` of a function; the hosts import the file, by its name and not as `__main__`.

    Args:
        function: of a file in the folder, at its top level.
        folder: that travels.

    Raises:
        UserError: it is none, and what to do.
    """
    name = getattr(function, "__name__", type(function).__name__)
    module = sys.modules.get(getattr(function, "__module__", ""))
    file = getattr(module, "__file__", None)
    if file is None:
        raise UserError(
            f"{name} is in no file that the hosts could import, as a function of a notebook: put it into a file and "
            f"submit './FILE.py:{name}', or call it on all hosts with cluster.gang()"
        )
    if getattr(module, name, None) is not function:
        raise UserError(f"{name} is not at the top level of {file} under that name: the hosts could not find it")
    if not Path(file).resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{name} is in {file}, and only {folder} travels to the hosts: go to the folder of that file")
    return f"./{Path(file).resolve().relative_to(folder.resolve()).as_posix()}:{name}"


def settings_of(config: Any, params: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as the text that `submit --set` takes.

    Args:
        config: a dataclass, whose fields that are not at their default count; or None.
        params: by name; they count more.

    Raises:
        UserError: the config is no dataclass.
    """
    values: dict[str, Any] = {}
    if config is not None:
        if not dataclasses.is_dataclass(config) or isinstance(config, type):
            raise UserError(f"config={config!r}: it must be an object of the workload's config, a dataclass")
        values = {
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(config)
            if getattr(config, field.name) != default_of(field)
        }
    return {name: _text(value) for name, value in {**values, **params}.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
