"""Typed parameters of a workload: a frozen dataclass whose fields say what they mean and what they allow.

A workload's config is `@dataclass(frozen=True, kw_only=True)` with fields made by `param(...)`; `parse` turns the
command line's `key=value` strings into it. This module imports no JAX, so that a mistake is answered at once.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from workloads.errors import ConfigError
from workloads.target import parse_target

Config = TypeVar("Config")

# Names that users of other packages try first, and what they are called here.
COMMON_ALIASES: Mapping[str, str] = {
    "num_samples": "num_draws",
    "num_results": "num_draws",
    "draws": "num_draws",
    "samples": "num_draws",
    "n_samples": "num_draws",
    "tune": "num_warmup",
    "warmup": "num_warmup",
    "burnin": "num_warmup",
    "num_burnin_steps": "num_warmup",
    "chains": "num_chains",
    "n_chains": "num_chains",
    "num_steps": "steps",
    "num_train_steps": "steps",
    "max_steps": "steps",
    "max_iters": "steps",
    "lr": "learning_rate",
    "batch": "batch_size",
    "global_batch_size": "batch_size",
    "dataset": "data",
    "file": "data",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParamInfo:
    """What `spmd-launch workloads NAME` prints of one parameter."""

    name: str
    type: str
    default: Any
    help: str
    choices: tuple[str, ...]
    is_file: bool
    is_function: bool


def param(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    file: bool = False,
    default_file: str | None = None,
    function: bool = False,
    function_check: str | None = None,
) -> Any:
    """A dataclass field with its meaning and its bounds.

    Args:
        default: value when the user says nothing.
        help: one line: what it is, with its unit.
        choices: the allowed strings, if it is one of a few.
        minimum: least allowed number (inclusive); `above` the same, exclusive.
        maximum: greatest allowed number (inclusive).
        file: the value names an input file, which is shipped to every host.
        default_file: `module:function` that writes the default input where the job is submitted (`file` only);
            called as `function(folder) -> path`. Its module imports no JAX.
        function: the value names a function of the user's, as `./FILE.py:FUNCTION` in their folder or as
            `MODULE:FUNCTION`, if it is none of the choices; the workload gets it by `context.function(value)`.
        function_check: `module:function` that a host calls with the loaded function before anything starts (`function`
            only); it raises `ConfigError` where the function will not do.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices),
        "minimum": minimum,
        "above": above,
        "maximum": maximum,
        "file": file or default_file is not None,
        "default_file": default_file,
        "function": function or function_check is not None,
        "function_check": function_check,
    }
    return dataclasses.field(default=default, metadata=metadata)


def _rules(field: dataclasses.Field[Any]) -> Mapping[str, Any]:
    """What a field declares; a plain field of a user's config declares nothing."""
    return {**_NO_RULES, **field.metadata}


_NO_RULES: Mapping[str, Any] = param(None, "").metadata


def nearest(name: str, allowed: Iterable[str], aliases: Mapping[str, str] = COMMON_ALIASES) -> str:
    """`; did you mean 'x'?`, or the empty string."""
    names = list(allowed)
    alias = aliases.get(name)
    if alias in names:
        return f"; did you mean {alias!r}?"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def describe(config_class: type) -> list[ParamInfo]:
    """Every parameter of a config class, in the order of its fields."""
    hints = typing.get_type_hints(config_class)
    return [
        ParamInfo(
            name=field.name,
            type=_type_name(hints[field.name]),
            default=field.default,
            help=_rules(field)["help"],
            choices=_rules(field)["choices"],
            is_file=_rules(field)["file"],
            is_function=_rules(field)["function"],
        )
        for field in dataclasses.fields(config_class)
    ]


def file_params(config_class: type) -> dict[str, str | None]:
    """Parameters that name input files, each with its `default_file` maker or None."""
    return {
        field.name: _rules(field)["default_file"] for field in dataclasses.fields(config_class) if _rules(field)["file"]
    }


def function_params(config: Any) -> dict[str, str | None]:
    """Parameters whose values in this config name functions of the user's, each with its `function_check` or None."""
    return {
        field.name: _rules(field)["function_check"]
        for field in dataclasses.fields(config)
        if _rules(field)["function"] and parse_target(getattr(config, field.name) or "") is not None
    }


def parse(config_class: type[Config], settings: Mapping[str, str]) -> Config:
    """Builds a config from strings.

    Args:
        config_class: a frozen dataclass with `param` fields.
        settings: `{key: text}` as given on the command line.

    Raises:
        ConfigError: unknown key, a value that is not of its type, or one that is not allowed.
    """
    hints = typing.get_type_hints(config_class)
    unknown = [key for key in settings if key not in hints]
    if unknown:
        key = unknown[0]
        raise ConfigError(f"no parameter {key!r}{nearest(key, hints)} (allowed: {', '.join(hints)})")
    values = {key: _parse_value(key, text, hints[key]) for key, text in settings.items()}
    return config_class(**values)


def check_params(config: Any) -> None:
    """Checks each field against its declaration; every config calls it first in `__post_init__`.

    Raises:
        ConfigError: naming the parameter, its value and what is allowed.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        _check_type(field.name, value, hints[field.name])
        if value is None:
            continue
        rules = _rules(field)
        if (rules["choices"] or rules["function"]) and not _is_allowed(value, rules):
            hint = nearest(str(value), rules["choices"], {})
            raise ConfigError(f"{field.name}={value!r}: must be {_allowed_words(rules)}{hint}")
        for bound, broken, words in _BOUNDS:
            if rules[bound] is not None and broken(value, rules[bound]):
                raise ConfigError(f"{field.name}={value!r}: must be {words} {rules[bound]}")


def _is_allowed(value: Any, rules: Mapping[str, Any]) -> bool:
    return value in rules["choices"] or (rules["function"] and parse_target(value) is not None)


def _allowed_words(rules: Mapping[str, Any]) -> str:
    """`one of a, b`, `one of a, b, or a function as ./FILE.py:FUNCTION or MODULE:FUNCTION`."""
    words = [f"one of {', '.join(rules['choices'])}"] if rules["choices"] else []
    return ", or ".join([*words, "a function as ./FILE.py:FUNCTION or MODULE:FUNCTION"] if rules["function"] else words)


# `not (a >= b)` and not `a < b`: NaN breaks every bound.
_BOUNDS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("minimum", lambda value, bound: not value >= bound, "at least"),
    ("above", lambda value, bound: not value > bound, "greater than"),
    ("maximum", lambda value, bound: not value <= bound, "at most"),
)

_TYPE_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_BOOLS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _parse_value(key: str, text: str, hint: Any) -> Any:
    base, optional = _strip_optional(hint)
    if optional and text.lower() in ("none", ""):
        return None
    if base is bool:
        if text.lower() not in _BOOLS:
            raise ConfigError(f"{key}={text!r}: must be {_TYPE_WORDS[bool]}")
        return _BOOLS[text.lower()]
    if base is str:
        return text
    try:
        return base(text)
    except ValueError:
        pass
    if base is int and _is_whole(text):
        return int(float(text))
    raise ConfigError(f"{key}={text!r}: must be {_TYPE_WORDS[base]}")


def _check_type(name: str, value: Any, hint: Any) -> None:
    """Refuses what a config made in Python or read from JSON may hold: another type, NaN, infinity."""
    base, optional = _strip_optional(hint)
    allowed = (int, float) if base is float else base
    fits = isinstance(value, allowed) and (base is bool or not isinstance(value, bool))
    if not fits and not (optional and value is None):
        raise ConfigError(f"{name}={value!r}: must be {_TYPE_WORDS[base]}{' or none' if optional else ''}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name}={value!r}: must be finite")


def _is_whole(text: str) -> bool:
    try:
        return float(text).is_integer()  # 1e6 is a whole number
    except ValueError:
        return False


def _strip_optional(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (base,) = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return base, True
    return hint, False


def _type_name(hint: Any) -> str:
    base, _ = _strip_optional(hint)
    return _TYPE_WORDS[base].removeprefix("a ")
