"""The vote over copies, and what it says: pure functions of digests, without JAX."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from workloads.errors import ReplicaDivergenceError, ValueMismatchError
from workloads.words import first_of

Status = Literal["ok", "diverged", "nothing-checked"]

MOST_DIVERGENCES_SHOWN = 8
MOST_HOLDERS_SHOWN = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """One piece of a leaf, and every copy of it in the whole job.

    Attributes:
        leaf: path of the leaf in the tree.
        index: which part of the leaf, as NumPy writes it (`[0:4, 0:8]`); empty for all of it.
        num_bytes: bytes of one copy.
        digests: `{holder: digest}`, holders as `host/device`, or `host/memory` for NumPy arrays.
        verified: digest that all copies have had, and the step since which they had it, if the block seems not to
            change; see `Verified`.
    """

    leaf: str
    index: str
    num_bytes: int
    digests: dict[str, str]
    verified: tuple[str, int] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two copies of a block first differ, element by element in row-major order.

    Attributes:
        holders: the two; the first is of the first group of the divergence.
        index: of the element in the leaf, in each dimension.
        bits: positions of the differing bits, 0 being the lowest (of the real part, if complex).
        hexes, values: the element's bits and its value in both copies.
        bad_chunks, num_chunks: how much differs: of so many equal chunks of the block, so many.
        chunk_elements: elements of a chunk; 1 if every element was compared.
    """

    holders: tuple[str, str]
    index: tuple[int, ...]
    bits: tuple[int, ...]
    hexes: tuple[str, str]
    values: tuple[str, str]
    bad_chunks: int
    num_chunks: int
    chunk_elements: int

    def __str__(self) -> str:
        ours, theirs = (
            f"{bits} ({value})" if value else bits for bits, value in zip(self.hexes, self.values, strict=True)
        )
        number = ("bits " if len(self.bits) > 1 else "bit ") + _shorten(list(map(str, self.bits)))
        size = "elements" if self.chunk_elements == 1 else f"chunks of {self.chunk_elements} elements"
        return (
            f"first at {list(self.index)}: {ours} on {self.holders[0]}, {theirs} on {self.holders[1]}, {number}; "
            f"{self.bad_chunks} of {self.num_chunks} {size} differ"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divergence:
    """A block whose copies differ, or (then `detail` says how) a tree that is not built alike on all ranks.

    Attributes:
        leaf, index: as in `Block`.
        groups: holders that agree with each other; the group that is right first if that is known, then the largest.
        digests: of each group, the fingerprint that its copies have; a replay is compared with them. Empty where it
            cannot be.
        culprits: holders of copies that are wrong; empty if nothing tells.
        how: "majority" if more than half of all copies agree, on more than half of their hosts; "unchanged since step
            N" if a copy of a block that was not seen to change still has the bits that were verified; "unknown" if
            neither tells; "no vote" if these are no copies of one another, so that none can be called wrong.
        differences: the first group against others, where that was looked for.
        detail: in words, what differs where bits could not be compared; else empty.
    """

    leaf: str
    index: str = ""
    groups: tuple[tuple[str, ...], ...] = ()
    digests: tuple[str, ...] = ()
    culprits: tuple[str, ...] = ()
    how: str = "unknown"
    differences: tuple[Difference, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        if self.detail:
            return f"{self.leaf}: {self.detail}"
        groups = " against ".join(f"{len(group)} x ({_shorten(group)})" for group in self.groups)
        return "\n    ".join([f"{self.leaf}{self.index}: {groups}{self._blame()}", *map(str, self.differences)])

    def without_vote(self) -> "Divergence":
        """The same of values that are no copies of one another: who has what, and no culprit."""
        return dataclasses.replace(self, culprits=(), how="no vote")

    def _blame(self) -> str:
        if self.how == "no vote":
            return ""
        if self.culprits:
            return f"; culprit: {_shorten(self.culprits)} ({self.how})"
        holders = [holder for group in self.groups for holder in group]
        if 2 * len(self.groups[0]) <= len(holders):
            return "; culprit unknown: no group is more than half"
        return (
            f"; culprit unknown: more than half agree, but on {len(_hosts(self.groups[0]))} of {len(_hosts(holders))} "
            "hosts, and copies of one host can share a fault"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one check, agreed by all ranks; `dataclasses.asdict` of it fits into JSON.

    Attributes:
        status: "ok" only if something was compared and all of it agreed.
        step, num_leaves: of this rank's call.
        bytes_checked: bytes of distinct data of which at least two copies were compared, each byte counted once
            however many copies it has. With `bytes_single_copy` it adds up to the size of the tree.
        bytes_single_copy: bytes of distinct data with no second copy anywhere: no comparison can vouch for them.
        seconds: wall time on this rank, the wait for the slowest rank and a first compilation included.
        divergences: empty unless diverged.
    """

    status: Status
    step: int
    num_leaves: int
    bytes_checked: int
    bytes_single_copy: int
    seconds: float
    divergences: tuple[Divergence, ...] = ()

    def with_(self, other: "Verdict") -> "Verdict":
        """Of both trees, checked one after the other at the same step, the first of which has not diverged."""
        statuses = (other.status, self.status)
        return dataclasses.replace(
            other,
            status=next((status for status in statuses if status != "nothing-checked"), "nothing-checked"),
            num_leaves=self.num_leaves + other.num_leaves,
            bytes_checked=self.bytes_checked + other.bytes_checked,
            bytes_single_copy=self.bytes_single_copy + other.bytes_single_copy,
            seconds=self.seconds + other.seconds,
        )

    def raise_if_diverged(self, subject: str = "") -> None:
        """Raises `ReplicaDivergenceError`, naming leaf, index, holders and the vote, if copies differ.

        Args:
            subject: what was compared, in words; by default the replicas at this step.
        """
        if self.status == "diverged":
            heading = f"{subject} differ" if subject else f"replicas differ at step {self.step}"
            raise ReplicaDivergenceError(self._told(heading, self.divergences), self)

    def raise_if_unlike(self, subject: str, remedy: str) -> None:
        """Raises `ValueMismatchError`, naming leaf, index and who has what, if values differ that are no copies.

        What the program has each host or shard bring may differ by the program: no number of others outvotes it.

        Args:
            subject: what was compared, in words, plural.
            remedy: what to do, in words.
        """
        if self.status == "diverged":
            told = self._told(f"{subject} differ", [divergence.without_vote() for divergence in self.divergences])
            raise ValueMismatchError(f"{told}\n{remedy}")

    def _told(self, heading: str, divergences: Sequence[Divergence]) -> str:
        lines = [f"  {divergence}" for divergence in divergences[:MOST_DIVERGENCES_SHOWN]]
        if len(divergences) > len(lines):
            lines.append(f"  and {len(divergences) - len(lines)} more")
        leaves = len({divergence.leaf for divergence in divergences})
        return f"{heading}, in {leaves} of {self.num_leaves} leaves:\n" + "\n".join(lines)


def judge(
    blocks: Sequence[Block],
    *,
    step: int,
    num_leaves: int,
    seconds: float,
    bytes_checked: int = 0,
    bytes_single_copy: int = 0,
) -> Verdict:
    """The verdict over a tree that is built alike on all ranks.

    Args:
        blocks: those that must be looked at one by one.
        bytes_checked, bytes_single_copy: of all other blocks, whose copies are known to agree.
    """
    compared = [block for block in blocks if len(block.digests) > 1]
    checked = sum(block.num_bytes for block in compared)
    divergences = tuple(divergence for block in compared if (divergence := vote(block)))
    status: Status = "diverged" if divergences else "ok" if checked + bytes_checked else "nothing-checked"
    return Verdict(
        status=status,
        step=step,
        num_leaves=num_leaves,
        bytes_checked=bytes_checked + checked,
        bytes_single_copy=bytes_single_copy + sum(block.num_bytes for block in blocks) - checked,
        seconds=seconds,
        divergences=divergences,
    )


def vote(block: Block) -> Divergence | None:
    """None if all copies agree; else who agrees with whom, and who is wrong if a majority or the past tells.

    A majority is more than half of the copies, on more than half of the hosts that have one: what one process loads or
    compiles may be wrong on all its devices at once, so copies that lie on no other host count for one witness.
    """
    holders = collections.defaultdict(list)
    for holder, digest in block.digests.items():
        holders[digest].append(holder)
    if len(holders) < 2:
        return None
    largest = max(holders, key=lambda digest: len(holders[digest]))
    right, how = None, "unknown"
    most_hosts = 2 * len(_hosts(holders[largest])) > len(_hosts(block.digests))
    if most_hosts and 2 * len(holders[largest]) > len(block.digests):
        right, how = largest, "majority"
    elif block.verified and block.verified[0] in holders:
        right, how = block.verified[0], f"unchanged since step {block.verified[1]}"
    ranked = sorted(holders, key=lambda digest: (digest != right, -len(holders[digest]), sorted(holders[digest])))
    groups = tuple(tuple(sorted(holders[digest])) for digest in ranked)
    culprits = tuple(holder for group in groups[1:] for holder in group) if right else ()
    return Divergence(
        leaf=block.leaf, index=block.index, groups=groups, digests=tuple(ranked), culprits=culprits, how=how
    )


def compare_structures(structures: dict[str, dict[str, str]]) -> tuple[Divergence, ...]:
    """Says in words where trees differ.

    Args:
        structures: for each host, `{leaf: description}`.
    """
    leaves = dict.fromkeys(leaf for structure in structures.values() for leaf in structure)
    divergences = []
    for leaf in leaves:
        hosts = collections.defaultdict(list)
        for host, structure in structures.items():
            hosts[structure.get(leaf, "absent")].append(host)
        if len(hosts) > 1:
            detail = ", but ".join(f"{description} on {_shorten(names)}" for description, names in hosts.items())
            divergences.append(Divergence(leaf=leaf, detail=detail))
    return tuple(divergences)


def _hosts(holders: Iterable[str]) -> set[str]:
    return {holder.split("/")[0] for holder in holders}


def _shorten(names: Sequence[str]) -> str:
    return first_of(names, MOST_HOLDERS_SHOWN)
