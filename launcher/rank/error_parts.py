"""An exception as data, without our frames and JAX's; the client adds the lines of its notebook."""

import traceback
from pathlib import Path
from typing import Any

import jax

OURS = str(Path(__file__).resolve().parent)
JAX = str(Path(jax.__file__).parent)  # it hides its frames itself, but not of an interrupt
JAX_NOTE = "--------------------\nFor simplicity, JAX has removed"
MAX_CHAIN = 8

CAUSE = "The above exception was the direct cause of the following exception:"
CONTEXT = "During handling of the above exception, another exception occurred:"


def error_parts(error: BaseException) -> list[dict[str, Any]]:
    """The exception and what led to it, in the order in which Python prints them.

    Returns:
        Of each: `frames`, a list of file, line number, function and text of the line ("" where it is not known);
        `end`, such as `ValueError: no`; and `then`, how it leads to the next.
    """
    parts: list[dict[str, Any]] = []
    then = ""
    current: BaseException | None = error
    while current is not None and len(parts) < MAX_CHAIN:
        end = "".join(traceback.format_exception_only(current)).partition(JAX_NOTE)[0].rstrip()
        parts.insert(0, {"frames": _frames(current), "end": end, "then": then})
        if current.__cause__ is not None:
            current, then = current.__cause__, CAUSE
        elif current.__context__ is not None and not current.__suppress_context__:
            current, then = current.__context__, CONTEXT
        else:
            current = None
    return parts


def _frames(error: BaseException) -> list[list[Any]]:
    frames = [
        [frame.filename, frame.lineno, frame.name, frame.line or ""]
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    return [frame for frame in frames if not str(frame[0]).startswith((OURS, JAX))]
