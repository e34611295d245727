"""Sequences of launches, run-length encoded, and where two of them part. Imports no JAX: the supervisor uses it."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from workloads.agreement.majority import name_ranks, vote

Run = tuple[str, int]  # an entry, and how many times in a row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launches:
    """The end of what one rank has launched.

    Attributes:
        count: entries since the start of the attempt.
        digest: rolling sha256 over all of them, hexadecimal.
        runs: the last entries; those before were agreed upon, sent before, or dropped to bound the memory.
    """

    count: int
    digest: str
    runs: tuple[Run, ...]

    @property
    def start(self) -> int:
        """How many entries precede `runs`."""
        return self.count - sum(length for _, length in self.runs)


def first_difference(tails: Mapping[int, tuple[int, Sequence[Run]]]) -> tuple[int, dict[int, str]] | None:
    """The first place where two ranks have launched different things; ranks that are merely behind do not differ.

    Args:
        tails: `{rank: (number of entries before, runs)}`.

    Returns:
        The place, counted from 0, and `{rank: entry}` of the ranks that have one there; None if what is known agrees.
    """
    place = max(start for start, _ in tails.values())  # where all are known
    cursors = {rank: _skip(runs, place - start) for rank, (start, runs) in tails.items()}
    while True:
        heads = {rank: cursor[-1] for rank, cursor in cursors.items() if cursor}
        if len(heads) < 2:
            return None
        if len({entry for entry, _ in heads.values()}) > 1:
            return place, {rank: entry for rank, (entry, _) in heads.items()}
        common = min(length for _, length in heads.values())
        for rank in heads:
            cursors[rank] = _advance(cursors[rank], common)
        place += common


def describe_difference(place: int, entries: Mapping[int, str]) -> str:
    """`launch 14: rank 0 launched 'train' where rank 1 launched 'validate'`.

    The digest of a program is shown only where the names do not tell them apart.

    Args:
        place: counted from 0.
        entries: `{rank: what it launched there}`; two of them differ.
    """
    ballot = vote(entries)
    names = [entries[group[0]] for group in ballot.groups]
    short = [name.partition(" #")[0] for name in names]
    told_apart = len(set(short)) == len(short)
    if told_apart:
        names = short
    first, *others = (
        f"{name_ranks(group)} launched '{name}'" for group, name in zip(ballot.groups, names, strict=True)
    )
    why = "" if told_apart else " (other programs of one name, or other shapes: after # is the digest of each)"
    return f"launch {place + 1}: {first} where {' and '.join(others)}{why}"


def describe_counts(step: int, numbers: Mapping[int, int]) -> str:
    """`launches at the report of step 13: rank 0 12, rank 1 11`.

    Args:
        step: the report's.
        numbers: `{rank: how many it had launched}`.
    """
    return f"launches at the report of step {step}: " + ", ".join(
        f"rank {rank} {number}" for rank, number in sorted(numbers.items())
    )


def append_run(runs: list[Run], entry: str, times: int = 1) -> None:
    """Adds an entry at the end."""
    if runs and runs[-1][0] == entry:
        runs[-1] = (entry, runs[-1][1] + times)
    else:
        runs.append((entry, times))


def drop_first(runs: Sequence[Run], number: int) -> list[Run]:
    """The runs without their first `number` entries."""
    return list(reversed(_skip(runs, number)))


def last_entries(runs: Sequence[Run], number: int) -> list[Run]:
    """The last `number` entries, or all there are; looks at no more runs than it returns."""
    found: list[Run] = []
    for entry, length in reversed(runs):
        if number <= 0:
            break
        found.append((entry, min(length, number)))
        number -= length
    return found[::-1]


def to_runs(values: Iterable[Sequence[object]]) -> tuple[Run, ...]:
    """Runs from the lists that JSON makes of them."""
    return tuple((str(entry), int(str(length))) for entry, length in values)


def _skip(runs: Sequence[Run], number: int) -> list[Run]:
    """The runs without their first `number` entries, last run first."""
    return _advance(list(reversed(runs)), number)


def _advance(cursor: list[Run], number: int) -> list[Run]:
    """Takes `number` entries off the end of reversed runs; what is not there is not taken."""
    while number > 0 and cursor:
        entry, length = cursor.pop()
        if length > number:
            cursor.append((entry, length - number))
        number -= length
    return cursor
