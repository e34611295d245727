"""What is the user's of all that a rank writes: their own lines, without those of gloo, XLA and the launcher.

Gloo's threads write a message piece by piece, and whoever flushes first tears the others' apart: what a user prints,
or the end of a call, can come between any two pieces. Where a tear leaves a doubt, the line is shown.
"""

import re

_NOT_THEIRS = re.compile(r"spmd-launch: |[IWEF]\d{4} \d\d:\d\d:\d\d|\*\*\* Check failure|    @ +0x")
_PIECES = r"\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : "
# Digits alone after "[Gloo] Rank " may be the user's, and so may "1 is connected to 2".
_SURELY = r"(?:\[Gloo\] Rank )+$|.*(?:\[Gloo\] .* connected | peer ranks\. |Expected number)"
_GLOOS = re.compile(rf"(?={_SURELY})(?:\d*(?:{_PIECES}))+\d*")
_GLOOS_BEGUN = re.compile(rf"(?:\[Gloo\] Rank )+(?:\d+ is connected to (?:\d+ peer ranks\. (?:{_PIECES})?)?)?")


class UserLines:
    """The lines of one rank; its output comes in parts that end anywhere."""

    def __init__(self) -> None:
        self._rest = ""

    def add(self, text: str) -> list[str]:
        """The user's lines among those that `text` has completed."""
        *lines, self._rest = (self._rest + text).split("\n")
        return [shown for line in lines if (shown := users_part(line)) is not None]

    def end(self) -> list[str]:
        """A call has ended: what it has printed last may have no line end. What gloo has begun comes later."""
        if not self._rest or _GLOOS.fullmatch(self._rest):
            return []
        line, self._rest = self._rest, ""
        shown = users_part(line)
        return [] if shown is None else [shown]


def users_part(line: str) -> str | None:
    """The user's part of a whole line; None: it is not theirs."""
    if _GLOOS.fullmatch(line):
        return None
    theirs = _GLOOS_BEGUN.sub("", line, count=1) if line.startswith("[Gloo] ") else line
    return None if _NOT_THEIRS.match(theirs) else theirs
