"""Functions of the user's, as `./my_file.py:run` or `my_pkg.my_module:run`: workloads, and values of parameters.

The first parameter of a workload is annotated with its config, a frozen dataclass; it is called as the shipped ones
are, and what cannot be called so is refused. All are imported on a host, in a process of its own or in a rank, never
where a job is submitted.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from workloads.errors import ConfigError
from workloads.installed import InstalledWorkload, find_installed
from workloads.params import check_params
from workloads.registry import WORKLOADS, WorkloadSpec, find
from workloads.target import Target, parse_target


@dataclasses.dataclass(frozen=True)
class UserFunction:
    """A function of the user's, which is called like any other.

    Attributes:
        text: as named.
        function: itself.
        module: where it was found, with what else stands there.
    """

    text: str
    function: Callable[..., Any]
    module: ModuleType

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


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


def find_workload(text: str, folder: Path) -> UserWorkload | WorkloadSpec:
    """The workload that was submitted: ours or an installed package's by its name, or a function of the user's.

    Args:
        text: as submitted.
        folder: see `load_function`.

    Raises:
        ConfigError: there is none.
    """
    if parse_target(text) is not None:
        return load(text, folder)
    installed = installed_workload(text)
    return load(installed.function, folder) if installed else find(text)


def installed_workload(text: str) -> InstalledWorkload | None:
    """What an installed package offers under a workload's name; None for one of ours, and for the user's functions.

    Raises:
        ConfigError: several packages offer it.
    """
    return None if text in WORKLOADS else find_installed(text)


def load(text: str, folder: Path) -> UserWorkload:
    """Imports a user's workload.

    Args:
        text: as submitted.
        folder: see `load_function`.

    Raises:
        ConfigError: there is no such function, it cannot be called as a rank does, or its first parameter is not
            annotated with a frozen dataclass.
    """
    found = load_function(text, folder)
    check_signature(text, found.function)
    return UserWorkload(text, found.function, _config_of(text, found.function))


def load_function(text: str, folder: Path) -> UserFunction:
    """Imports a user's function; a file that has been imported already is not run again.

    Args:
        text: where it is.
        folder: the copy of the user's folder; it comes last on Python's path, so that names of ours stay ours.

    Raises:
        ConfigError: there is no such function.
    """
    target = parse_target(text)
    if target is None:
        raise ConfigError(f"{text!r} names no function; expected ./FILE.py:FUNCTION or MODULE:FUNCTION")
    folder = folder.absolute()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    module = _file_module(target, folder / target.place) if target.is_file else _named_module(target)
    function = getattr(module, target.function, None)
    if not callable(function):
        raise ConfigError(f"{text!r}: {target.place} has no function {target.function!r}")
    return UserFunction(text, function, module)


def _named_module(target: Target) -> ModuleType:
    try:
        return importlib.import_module(target.place)
    except ModuleNotFoundError as error:
        if not target.place.startswith(str(error.name)):
            raise  # something that the module itself needs
        raise ConfigError(f"there is no module {target.place!r} in the folder or among the hosts' packages") from error


def _file_module(target: Target, file: Path) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"there is no file {target.place} in the folder")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    known = sys.modules.get(target.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    if known is not None or target.stem in sys.stdlib_module_names:
        raise ConfigError(f"{target.place}: Python has a module {target.stem!r} already; give the file another name")
    spec = importlib.util.spec_from_file_location(target.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[target.stem] = module  # dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[target.stem]  # half a module is none
        raise
    return module


def check_signature(text: str, function: Callable[..., Any]) -> None:
    """Refuses a function that a rank could not call, which it does once JAX is up, long after the submit.

    Args:
        text: as submitted.
        function: that it names.

    Raises:
        ConfigError: with the signature that it should have, and the one that it has.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a decorator may give what is missing
    except (TypeError, ValueError) as error:  # of some that are written in C
        raise ConfigError(f"{text!r}: it is no function of Python's that could be a workload: {error}") from error
    try:
        signature.bind("config", "context", resume=False)  # as in `launcher.rank.main`
    except TypeError as error:
        name = text.rpartition(":")[2]
        raise ConfigError(
            f"{text!r}: it cannot be called as {name}(config, context, resume=False): {error}; "
            f"expected `def {name}(config: Config, context, resume=False)`, found `def {name}{signature}`"
        ) from error


def _config_of(text: str, function: Callable[..., Any]) -> type:
    first = next(iter(inspect.signature(function).parameters), "")  # none where a decorator has added them
    found = typing.get_type_hints(function).get(first)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ConfigError(
            f"{text!r}: its first parameter, {first!r}, must be annotated with its config, a frozen dataclass; "
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
