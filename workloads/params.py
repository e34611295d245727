"""Typed parameters of a workload: a frozen dataclass whose fields say what they mean and what they allow.

A workload's config is `@dataclass(frozen=True, kw_only=True)` with fields made by `param(...)`; `parse` turns the
command line's `key=value` strings into it. This module imports no JAX, so that a mistake is answered at once.
"""

import dataclasses
import difflib
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from workloads.errors import ConfigError
from workloads.param_types import check_type, is_known, literals, parse_value, type_name
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
    default: Any  # None, if it is required
    help: str
    choices: tuple[str, ...]
    is_file: bool
    is_function: bool
    is_required: bool = False


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
        default: value when the user says nothing; `dataclasses.MISSING`: they must say something.
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
    """Every parameter of a config class, in the order of its fields.

    Raises:
        ConfigError: a field of a type that no text stands for.
    """
    hints = _hints(config_class)
    return [
        ParamInfo(
            name=field.name,
            type=type_name(hints[field.name]),
            default=None if _is_required(field) else default_of(field),
            help=_rules(field)["help"],
            choices=_choices(field, hints[field.name]),
            is_file=_rules(field)["file"],
            is_function=_rules(field)["function"],
            is_required=_is_required(field),
        )
        for field in dataclasses.fields(config_class)
    ]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """What the field is where nobody sets it; `dataclasses.MISSING`, if it is required."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _hints(config_class: type) -> dict[str, Any]:
    """`{field: its type}`.

    Raises:
        ConfigError: a type that no text stands for.
    """
    every = typing.get_type_hints(config_class)
    hints = {field.name: every[field.name] for field in dataclasses.fields(config_class)}
    for name, hint in hints.items():
        if not is_known(hint):
            shown = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else hint
            raise ConfigError(
                f"{name}: {shown} is no type of a parameter, which must be int, float, bool, str, a Literal of values "
                "of one of these, or such a type or None; make it text, say, and read it in the workload"
            )
    return hints


def _choices(field: dataclasses.Field[Any], hint: Any) -> tuple[str, ...]:
    """What a text may be, if it is one of few."""
    declared: tuple[str, ...] = _rules(field)["choices"]
    return declared or tuple(map(str, literals(hint)))


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
        ConfigError: unknown key, a value that is not of its type, or one that is not allowed; a required parameter that
            is not set.
    """
    hints = _hints(config_class)
    unknown = [key for key in settings if key not in hints]
    if unknown:
        key = unknown[0]
        raise ConfigError(f"no parameter {key!r}{nearest(key, hints)} (allowed: {', '.join(hints)})")
    values = {key: parse_value(key, text, hints[key]) for key, text in settings.items()}
    required = [field.name for field in dataclasses.fields(config_class) if _is_required(field)]  # type: ignore[arg-type]
    if absent := [name for name in required if name not in values]:
        raise ConfigError(f"{', '.join(absent)}: must be set, there is no default: --set {absent[0]}=...")
    return config_class(**values)


def check_params(config: Any) -> None:
    """Checks each field against its declaration; every config calls it first in `__post_init__`.

    Raises:
        ConfigError: naming the parameter, its value and what is allowed.
    """
    hints = _hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        check_type(field.name, value, hints[field.name])
        if value is None:
            continue
        allowed = literals(hints[field.name])
        if allowed and value not in allowed:
            raise ConfigError(
                f"{field.name}={value!r}: must be one of {', '.join(map(str, allowed))}"
                f"{nearest(str(value), map(str, allowed), {})}"
            )
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
