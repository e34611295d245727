"""Lists as a person reads them. Imports no JAX: the launcher lists, too."""

from collections.abc import Sequence


def first_of(names: Sequence[str], most: int = 3) -> str:
    """`a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
