"""Fingerprints of all copies in this process, and the few words that stand for them when nothing is wrong."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from workloads.integrity.fingerprint import fingerprint_copies, fingerprint_host
from workloads.integrity.plan import Plan

Digests = Mapping[str, str | None]  # by name of the filter; None where local copies differ


def read_copies(plan: Plan, values: Sequence[Any]) -> np.ndarray:
    """Fingerprints of all local copies, uint64 (copies,); all devices work at once, and are waited for once."""
    words = np.zeros(len(plan.copies), np.uint64)
    pending = []
    for batch in plan.batches:
        shards = [values[leaf].addressable_shards for leaf in batch.leaves]
        orders = [[plan.copies[number].shard for number in column] for column in batch.copies.T.tolist()]
        pending.append(
            fingerprint_copies([[held[k].data for k in order] for held, order in zip(shards, orders, strict=True)])
        )
    for number, copy in enumerate(plan.copies):
        if copy.shard is None:
            words[number] = int(fingerprint_host(values[copy.leaf]), 16)
    for batch, found in zip(plan.batches, jax.device_get(pending), strict=True):
        words[batch.copies] = np.ascontiguousarray(found).view(np.uint64)[..., 0]
    return words


def summarize(plan: Plan, words: np.ndarray) -> Digests:
    """One digest for each filter of the plan: equal on two ranks only if they hold the same blocks with equal bits.

    A filter of this rank alone has nothing to be compared with elsewhere, and is told only if copies differ here.
    """
    unequal = set(plan.first[words != words[plan.first]].tolist())
    digests: dict[str, str | None] = {}
    for name, found in plan.filters.items():
        if unequal and not unequal.isdisjoint(found.copies.tolist()):
            digests[name] = None
        elif "," in name:
            digests[name] = hashlib.blake2b(found.blocks + words[found.copies].tobytes(), digest_size=8).hexdigest()
    return digests


def suspects(plan: Plan, digests: Sequence[Digests]) -> list[int]:
    """Leaves in which a difference must be looked for: some rank that should have told the same did not.

    Args:
        digests: of each rank, in their order.
    """
    buckets = set()
    for name in dict.fromkeys(name for posted in digests for name in posted):
        bucket, _, ranks = name.partition("/")
        told = {str(rank): posted[name] for rank, posted in enumerate(digests) if name in posted}
        if None in told.values() or len(set(told.values())) > 1 or list(told) != ranks.split(","):
            buckets.add(int(bucket))
    return [number for number in range(len(plan.leaves)) if plan.bucket(number) in buckets]
