"""The ways in which a cluster says no, and the nearest allowed word."""

import difflib
from collections.abc import Iterable, Mapping


class ClusterError(RuntimeError):
    """Something failed while a cluster was made or reached; the message says what, where, and the likely fix."""


class NotGivenError(ClusterError):
    """A cloud has not given what was asked for: nothing of it is there, or costs."""


class ClusterConfigError(ValueError):
    """A setting of a cluster is wrong: the user's mistake, found before anything starts.

    Args:
        key: the setting, dotted (`env.PATH`); empty where the file as a whole is meant.
        problem: what is allowed against what was found, with the nearest match.
        where: `file:line`; empty for a spec that was not read from a file.
    """

    def __init__(self, key: str, problem: str, where: str = ""):
        shown = key if key.isprintable() else repr(key)  # one line, whatever a file calls a key
        super().__init__(": ".join(part for part in (where, shown, problem) if part))
        self.key = key
        self.problem = problem
        self.where = where

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.key, self.problem, self.where)


def nearest(word: str, allowed: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """`; did you mean 'x'?`, or the empty string."""
    words = list(allowed)
    alias = (aliases or {}).get(word.lower())
    if alias in words:
        return f"; did you mean {alias!r}?"
    by_lower = {word.lower(): word for word in words}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
