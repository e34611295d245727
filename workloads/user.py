"""A workload of the user's: a function in a file or module of theirs, as `./my_file.py:run` or `my_pkg.my_module:run`.

Its first parameter is annotated with its config, a frozen dataclass; it is called as the shipped workloads are. It is
imported on a host, in a process of its own or in a rank, never where a job is submitted.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from workloads.errors import ConfigError
from workloads.params import check_params

TARGET = re.compile(r"(?P<place>[^:\0]+\.py|[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """Where a function is.

    Attributes:
        place: a file's path relative to the user's folder, or a module's name.
        function: its name there.
    """

    place: str
    function: str

    @property
    def is_file(self) -> bool:
        return self.place.endswith(".py")

    @property
    def stem(self) -> str:
        """`my_module` of `src/my_module.py` and of `my_pkg.my_module`."""
        return PurePosixPath(self.place).stem if self.is_file else self.place.rpartition(".")[2]


def parse_target(text: str) -> Target | None:
    """The function that is meant, or None where `text` names no function."""
    match = TARGET.fullmatch(text)
    if match is None:
        return None
    return Target(place=match["place"].removeprefix("./"), function=match["function"])


@dataclasses.dataclass(frozen=True)
class UserWorkload:
    """A loaded function with its config."""

    name: str
    function: Callable[..., Any]
    config: type

    def config_class(self) -> type:
        return self.config

    def run_function(self) -> Callable[..., Any]:
        return self.function


def load(text: str, folder: Path) -> UserWorkload:
    """Imports a user's function.

    Args:
        text: as submitted.
        folder: the copy of the user's folder; it comes last on Python's path, so that names of ours stay ours.

    Raises:
        ConfigError: there is no such function, or its first parameter is not annotated with a frozen dataclass.
    """
    target = parse_target(text)
    if target is None:
        raise ConfigError(f"{text!r} names no function; expected ./FILE.py:FUNCTION or MODULE:FUNCTION")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    module = _module(target, folder)
    function = getattr(module, target.function, None)
    if not callable(function):
        raise ConfigError(f"{text!r}: {target.place} has no function {target.function!r}")
    return UserWorkload(text, function, _config_of(text, function))


def _module(target: Target, folder: Path) -> Any:
    if not target.is_file:
        try:
            return importlib.import_module(target.place)
        except ModuleNotFoundError as error:
            if not target.place.startswith(str(error.name)):
                raise  # something that the module itself needs
            raise ConfigError(
                f"there is no module {target.place!r} in the folder or among the hosts' packages"
            ) from error
    file = folder / target.place
    if not file.is_file():
        raise ConfigError(f"there is no file {target.place} in the folder")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    spec = importlib.util.spec_from_file_location(target.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[target.stem] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    return module


def _config_of(text: str, function: Callable[..., Any]) -> type:
    names = list(inspect.signature(function).parameters)
    if len(names) < 2:
        raise ConfigError(f"{text!r}: it must take a config and a context, as `def run(config: Config, context)`")
    found = typing.get_type_hints(function).get(names[0])
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ConfigError(
            f"{text!r}: its first parameter, {names[0]!r}, must be annotated with its config, a frozen dataclass; "
            f"got {found if found is not None else 'no annotation'}"
        )
    if not found.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ConfigError(f"{text!r}: its config {found.__name__} must be a frozen dataclass: @dataclass(frozen=True)")
    return found


def check(config: Any, layout: Any) -> None:
    """Holds a user's config against what its fields declare, and by its own `check(layout)` if it has one.

    Raises:
        ConfigError: with the parameter and what would fit.
    """
    check_params(config)
    if hasattr(config, "check"):
        config.check(layout)
