"""Exceptions of ranks as text: Python's own form, equal ones once."""

import linecache
from collections.abc import Mapping, Sequence
from typing import Any


def traceback_text(parts: Sequence[Mapping[str, Any]]) -> str:
    """As Python prints it; the text of lines that the rank could not read, of a notebook, is looked up here.

    Args:
        parts: as `launcher.rank.error_parts` makes them.
    """
    texts = []
    for part in parts:
        lines = [_frame(*frame) for frame in part["frames"]]
        head = "Traceback (most recent call last):\n" if lines else ""
        texts.append(f"{head}{''.join(lines)}{part['end']}" + (f"\n\n{part['then']}\n" if part["then"] else ""))
    return "\n".join(texts)


def _frame(file: str, line: int, function: str, text: str) -> str:
    shown = (text or linecache.getline(file, line)).strip()
    return f'  File "{file}", line {line}, in {function}\n' + (f"    {shown}\n" if shown else "")


def fold(texts: Mapping[int, str]) -> str:
    """Texts of ranks, equal ones once: `ranks 0-3:` and the text, and so on."""
    groups: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        groups.setdefault(text, []).append(rank)
    return "\n\n".join(f"{named(ranks)}:\n{text}" for text, ranks in groups.items())


def named(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0-3, 5`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    listed = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)
    return f"rank{'s' * (len(ranks) > 1)} {listed}"
