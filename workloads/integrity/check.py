"""The check: fingerprint what this rank holds, trade fingerprints out of band, vote on every block."""

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from workloads.exchange import Exchange
from workloads.integrity.elements import LocalCopy
from workloads.integrity.fingerprint import host_array
from workloads.integrity.localise import Pair, localise
from workloads.integrity.plan import Bounds, Plan, make_plan
from workloads.integrity.read import read_copies, summarize, suspects
from workloads.integrity.verdict import (
    Block,
    Difference,
    Divergence,
    Verdict,
    compare_structures,
    judge,
)
from workloads.integrity.verified import Verified

PyTree = Any

_STEP = "(step)"

# How many pairs of copies are looked at closely: more is seldom one fault, and the message would not show it.
MOST_PAIRS_SEARCHED = 8
MOST_PLANS = 8


class ReplicaChecker:
    """Compares all copies of every leaf bit by bit, through 64-bit fingerprints; remembers what it has verified.

    Two copies are the same block of the same leaf on two devices, here or on other hosts: of an array that is
    replicated over a mesh or over some of its axes, and likewise of what lies wholly in one process, such as arrays on
    a single device, NumPy arrays and Python numbers, which every rank is taken to hold alike. Leave out of the tree
    what a rank is meant to hold for itself. No collective is started: a rank that does not come ends in a time-out
    that names it. While all is well a rank posts a few digests, at most 64 for each set of ranks that share blocks.

    Args:
        exchange: messages between the ranks.
        host: this host's name.
    """

    def __init__(self, exchange: Exchange, host: str):
        self._exchange = exchange
        self._host = host
        self._known: dict[Any, tuple[Plan, Verified]] = {}

    def check(self, tree: PyTree, *, step: int) -> Verdict:
        """One check; every rank must call it. If copies differ, the ranks find out together where.

        Args:
            tree: any pytree of arrays and numbers; of every dtype, typed PRNG keys too.
            step: where the caller is; ranks that are at different steps are a divergence.

        Raises:
            TimeoutError: naming the ranks that did not call.
            TypeError: a leaf that is neither array nor number.
        """
        start = time.perf_counter()
        plan, verified, values = self._plan(tree)
        words = read_copies(plan, values)
        digests = summarize(plan, words)
        message = {"host": self._host, "step": step, "structure": plan.digest, "digests": digests}
        messages = self._exchange.all_gather("replicas", message)
        hosts = distinct_hosts([message["host"] for message in messages])
        if len({(message["structure"], message["step"]) for message in messages}) > 1:
            structures = self._exchange.all_gather("replica structures", {_STEP: str(step)} | plan.structure)
            verdict = _built_differently(compare_structures(dict(zip(hosts, structures, strict=True))), plan, step)
        else:
            leaves = suspects(plan, [message["digests"] for message in messages])
            blocks = self._exchange_blocks(plan, words, verified, leaves, hosts) if leaves else []
            rest = np.setdiff1d(np.arange(len(plan.leaves)), leaves)
            verdict = judge(
                blocks,
                step=step,
                num_leaves=len(plan.leaves),
                seconds=0.0,
                bytes_checked=int(plan.bytes_checked[rest].sum()),
                bytes_single_copy=int(plan.bytes_single_copy[rest].sum()),
            )
            if verdict.status == "diverged":
                verdict = self._localise(verdict, plan, values, hosts)
            else:
                verified.record(words, step)
        return dataclasses.replace(verdict, seconds=time.perf_counter() - start)

    def digests(self, tree: PyTree, blocks: Collection[str]) -> dict[str, str]:
        """Fingerprints of a few blocks, whoever holds them; every rank must call it, where `check` found no difference.

        Args:
            tree: as it was checked.
            blocks: which ones, as leaf and index of a `Divergence` name them: `params/w[0:4, 0:8]`.

        Returns:
            `{block: digest}`, the same on all ranks; what the tree does not have is left out.

        Raises:
            TimeoutError: naming the ranks that did not call.
        """
        plan, _, values = self._plan(tree)
        held = {}
        for copy, word in zip(plan.copies, read_copies(plan, values).tolist(), strict=True):
            leaf = plan.leaves[copy.leaf]
            name = leaf.path + leaf.block_index(leaf.blocks[copy.block])
            if name in blocks:
                held[name] = f"{word:016x}"
        messages: list[dict[str, str]] = self._exchange.all_gather("replica digests", held)
        return {name: digest for message in messages for name, digest in message.items()}

    def _plan(self, tree: PyTree) -> tuple[Plan, Verified, list[Any]]:
        """The plan for trees of this structure, made once."""
        values, treedef = jax.tree_util.tree_flatten(tree)
        key = (treedef, tuple(map(_signature, values)))
        known = self._known.pop(key, None)
        if known is None:
            paths = [_path(keys) for keys, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
            plan = make_plan(paths, values, num_ranks=self._exchange.num_ranks)
            known = plan, Verified(plan)
            if len(self._known) >= MOST_PLANS:
                # What was not used for longest: a history that grows has a new plan each time.
                del self._known[next(iter(self._known))]
        self._known[key] = known
        return *known, values

    def _exchange_blocks(
        self, plan: Plan, words: np.ndarray, verified: Verified, leaves: Sequence[int], hosts: Sequence[str]
    ) -> list[Block]:
        """Every block of these leaves with the copies that any host holds."""
        wanted = set(leaves)
        held = [
            (copy.leaf, copy.block, copy.device, f"{words[number]:016x}", verified.witness(number))
            for number, copy in enumerate(plan.copies)
            if copy.leaf in wanted
        ]
        digests: dict[tuple[int, int], dict[str, str]] = {}
        witnesses: dict[tuple[int, int], set[tuple[str, int] | None]] = {}
        for host, message in zip(hosts, self._exchange.all_gather("replica copies", held), strict=True):
            for leaf, block, device, digest, witness in message:
                digests.setdefault((leaf, block), {})[f"{host}/{device}"] = digest
                witnesses.setdefault((leaf, block), set()).add(tuple(witness) if witness else None)
        blocks = []
        for leaf in leaves:
            described = plan.leaves[leaf]
            for number, bounds in enumerate(described.blocks):
                seen = witnesses.get((leaf, number), set())
                blocks.append(
                    Block(
                        leaf=described.path,
                        index=described.block_index(bounds),
                        num_bytes=described.block_bytes(bounds),
                        digests=digests.get((leaf, number), {}),
                        verified=next(iter(seen)) if len(seen) == 1 else None,
                    )
                )
        return blocks

    def _localise(self, verdict: Verdict, plan: Plan, values: Sequence[Any], hosts: Sequence[str]) -> Verdict:
        """The verdict with the places where copies differ, as far as they are looked for."""
        blocks = {
            (leaf.path, leaf.block_index(bounds)): (leaf, bounds) for leaf in plan.leaves for bounds in leaf.blocks
        }
        pairs = [
            Pair(leaf=leaf, bounds=bounds, holders=(divergence.groups[0][0], group[0]))
            for divergence in verdict.divergences
            for leaf, bounds in [blocks[divergence.leaf, divergence.index]]
            for group in divergence.groups[1:]
        ][:MOST_PAIRS_SEARCHED]
        found = localise(pairs, _local_copies(plan, values, hosts[self._exchange.rank]), self._exchange)
        places: dict[tuple[str, str], list[Difference]] = {}
        for pair, difference in zip(pairs, found, strict=True):
            if difference:
                places.setdefault((pair.leaf.path, pair.leaf.block_index(pair.bounds)), []).append(difference)
        divergences = tuple(
            dataclasses.replace(item, differences=tuple(places.get((item.leaf, item.index), [])))
            for item in verdict.divergences
        )
        return dataclasses.replace(verdict, divergences=divergences)


def check_replicas(tree: PyTree, *, exchange: Exchange, host: str, step: int) -> Verdict:
    """One check by a `ReplicaChecker` without a past."""
    return ReplicaChecker(exchange, host).check(tree, step=step)


def _built_differently(differences: tuple[Divergence, ...], plan: Plan, step: int) -> Verdict:
    return Verdict(
        status="diverged",
        step=step,
        num_leaves=len(plan.leaves),
        bytes_checked=0,
        bytes_single_copy=0,
        seconds=0.0,
        divergences=differences,
    )


def _local_copies(plan: Plan, values: Sequence[Any], host: str) -> Mapping[tuple[str, Bounds, str], LocalCopy]:
    copies = {}
    for copy in plan.copies:
        leaf, value = plan.leaves[copy.leaf], values[copy.leaf]
        data = host_array(value) if copy.shard is None else value.addressable_shards[copy.shard].data
        copies[leaf.path, leaf.blocks[copy.block], f"{host}/{copy.device}"] = LocalCopy(data=data)
    return copies


def _signature(value: Any) -> tuple[Any, ...]:
    """What must be equal for one plan to fit; a number in host memory is one of its type."""
    if isinstance(value, jax.Array):
        return value.shape, value.dtype, value.sharding
    return type(value), np.shape(value), getattr(value, "dtype", None)


def distinct_hosts(hosts: Sequence[str]) -> Sequence[str]:
    """Names that tell the ranks apart: two copies must never count as one because their hosts are namesakes."""
    return hosts if len(set(hosts)) == len(hosts) else [f"{host} (rank {rank})" for rank, host in enumerate(hosts)]


def _path(keys: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator="/") or "(the tree itself)"
