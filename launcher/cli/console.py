"""What all commands share in the way they speak: plain words, the next commands, JSON on request."""

import json
import os
import sys
from collections.abc import Collection
from typing import Any

import click


def say(line: str) -> None:
    """A line about what is being done; to standard error, so that standard output holds the answer alone."""
    click.echo(line, err=True)


def show_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1))


def next_commands(*commands: str) -> None:
    """The useful commands after this one."""
    click.echo("\nnext:\n" + "\n".join(f"  {command}" for command in commands))


def is_terminal() -> bool:
    """Whether lines may be rewritten in place."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def table(headers: list[str], rows: list[list[str]], *, marked: Collection[int] = (), gap: int = 2) -> str:
    """Columns as wide as their widest cell.

    Args:
        headers: one a column.
        rows: cells.
        marked: indices of rows that get a `!` in front.
        gap: spaces between columns.
    """
    widths = [max(len(row[column]) for row in [headers, *rows]) for column in range(len(headers))]
    lines = []
    for index, row in enumerate([headers, *rows]):
        mark = "! " if index - 1 in marked else "  "
        lines.append(
            mark + (" " * gap).join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    return "\n".join(lines)


def seconds(value: float) -> str:
    """`0.42 s`, `12.3 s`, `3:05 min`, `2:10 h`."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 100:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"
