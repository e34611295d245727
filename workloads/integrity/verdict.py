"""The vote over copies, and what it says: pure functions of digests, without JAX."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Literal

from workloads.errors import ReplicaDivergenceError

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
    """

    leaf: str
    index: str
    num_bytes: int
    digests: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divergence:
    """A block whose copies differ, or (then `detail` says how) a tree that is not built alike on all ranks.

    Attributes:
        leaf, index: as in `Block`.
        groups: holders that agree with each other, the largest group first.
        culprits: holders outvoted by more than half of all copies; empty if there is no such majority.
        detail: in words, what differs where bits could not be compared; else empty.
    """

    leaf: str
    index: str = ""
    groups: tuple[tuple[str, ...], ...] = ()
    culprits: tuple[str, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        if self.detail:
            return f"{self.leaf}: {self.detail}"
        groups = " against ".join(f"{len(group)} x ({_shorten(group)})" for group in self.groups)
        if self.culprits:
            return f"{self.leaf}{self.index}: {groups}; culprit: {_shorten(self.culprits)}"
        return f"{self.leaf}{self.index}: {groups}; culprit unknown: no group is more than half"


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

    def raise_if_diverged(self) -> None:
        """Raises `ReplicaDivergenceError`, naming leaf, index, holders and the vote, if copies differ."""
        if self.status != "diverged":
            return
        lines = [f"  {divergence}" for divergence in self.divergences[:MOST_DIVERGENCES_SHOWN]]
        if len(self.divergences) > len(lines):
            lines.append(f"  and {len(self.divergences) - len(lines)} more")
        leaves = len({divergence.leaf for divergence in self.divergences})
        raise ReplicaDivergenceError(
            f"replicas differ at step {self.step}, in {leaves} of {self.num_leaves} leaves:\n" + "\n".join(lines)
        )


def judge(blocks: Sequence[Block], *, step: int, num_leaves: int, seconds: float) -> Verdict:
    """The verdict over all blocks of a tree that is built alike on all ranks."""
    compared = [block for block in blocks if len(block.digests) > 1]
    checked = sum(block.num_bytes for block in compared)
    divergences = tuple(divergence for block in compared if (divergence := vote(block)))
    status: Status = "diverged" if divergences else "ok" if checked else "nothing-checked"
    return Verdict(
        status=status,
        step=step,
        num_leaves=num_leaves,
        bytes_checked=checked,
        bytes_single_copy=sum(block.num_bytes for block in blocks) - checked,
        seconds=seconds,
        divergences=divergences,
    )


def vote(block: Block) -> Divergence | None:
    """None if all copies agree; else who agrees with whom, and who is outvoted by more than half of all copies."""
    holders = collections.defaultdict(list)
    for holder, digest in block.digests.items():
        holders[digest].append(holder)
    if len(holders) < 2:
        return None
    groups = sorted((tuple(sorted(group)) for group in holders.values()), key=lambda group: (-len(group), group))
    majority = 2 * len(groups[0]) > len(block.digests)
    culprits = tuple(holder for group in groups[1:] for holder in group) if majority else ()
    return Divergence(leaf=block.leaf, index=block.index, groups=tuple(groups), culprits=culprits)


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


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_HOLDERS_SHOWN} more" if len(names) > MOST_HOLDERS_SHOWN else ""
    return ", ".join(names[:MOST_HOLDERS_SHOWN]) + more
