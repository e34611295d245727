"""Times as a cluster file gives them: `30m`, `2h`, `1d12h`."""

import re
from typing import Any

from cluster.errors import ClusterConfigError

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}  # in seconds
NEVER = "none"
AT_LEAST_S = 5
AT_MOST_S = 365 * UNITS["d"]
_FORM = re.compile("".join(rf"(?:([0-9]{{1,9}}){unit})?" for unit in UNITS))
_WORDS = {"days?": "d", "hours?|hrs?": "h", "minutes?|mins?": "m", "seconds?|secs?": "s"}


def seconds_of(text: str) -> int | None:
    """The seconds that a text stands for; None: it is no time."""
    match = _FORM.fullmatch(text)
    if match is None or not text:
        return None
    return sum(int(count) * unit for count, unit in zip(match.groups(), UNITS.values(), strict=True) if count)


def in_units(seconds: float) -> str:
    """`2h30m`, `45s`: the inverse of `seconds_of`; less than a second is `0s`."""
    text, rest = "", int(seconds)
    for unit, size in UNITS.items():
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def check_limit(key: str, value: Any) -> str:
    """A limit as it is kept on record, always in the same units, or NEVER.

    Args:
        key: the setting.
        value: as a cluster file has it.

    Raises:
        ClusterConfigError: it is neither.
    """
    seconds = seconds_of(value) if isinstance(value, str) else None
    if value == NEVER:
        return NEVER
    if seconds is None or not AT_LEAST_S <= seconds <= AT_MOST_S:
        allowed = f"must be {NEVER}, or a time from {in_units(AT_LEAST_S)} to {in_units(AT_MOST_S)}, as 30m or 1d12h"
        raise ClusterConfigError(key, f"{allowed}, not {value!r}{_hint(value)}")
    return in_units(seconds)


def _hint(value: Any) -> str:
    """What a time in other words may mean."""
    if not isinstance(value, str):
        return ""
    text = "".join(value.lower().split())
    for words, unit in _WORDS.items():
        text = re.sub(rf"(?<=[0-9])({words})(?![a-z])", unit, text)
    text += "m" if text.isdecimal() else ""
    return f"; did you mean {text!r}?" if text != value and seconds_of(text) else ""
