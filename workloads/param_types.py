"""Which types a parameter may have, and how text becomes a value of one."""

import math
import types
import typing
from typing import Any

from workloads.errors import ConfigError

_TYPE_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_BOOLS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def is_known(hint: Any) -> bool:
    """Whether text stands for values of this type."""
    try:
        return _strip_optional(hint)[0] in _TYPE_WORDS
    except TypeError:  # it cannot be hashed, or has several types
        return False


def parse_value(key: str, text: str, hint: Any) -> Any:
    """The value that a text stands for.

    Args:
        key: what the parameter is called.
        hint: its type, a known one.

    Raises:
        ConfigError: it stands for none.
    """
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


def check_type(name: str, value: Any, hint: Any) -> None:
    """Refuses what a config made in Python or read from JSON may hold: another type, NaN, infinity.

    Raises:
        ConfigError: with the value and what it must be.
    """
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
    """What a value must be an instance of, and whether it may be None.

    Raises:
        TypeError: it may be of several types.
    """
    parts = typing.get_args(hint) if _is_union(hint) else (hint,)
    bases = {part for part in parts if typing.get_origin(part) is not typing.Literal} | set(map(type, literals(hint)))
    base, *more = bases - {types.NoneType} or {types.NoneType}
    if more:
        raise TypeError(f"{hint} is of several types")
    return base, len(bases) > 1


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def literals(hint: Any) -> tuple[Any, ...]:
    """The values of a `Literal`; nothing of another type."""
    parts = typing.get_args(hint) if _is_union(hint) else (hint,)
    return tuple(
        value for part in parts if typing.get_origin(part) is typing.Literal for value in typing.get_args(part)
    )


def type_name(hint: Any) -> str:
    """`whole number`, `text`."""
    return _TYPE_WORDS[_strip_optional(hint)[0]].removeprefix("a ")
