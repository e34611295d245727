"""`gather`: what lies on many hosts, as NumPy arrays on one of them or on all, a piece at a time."""

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import jax
import numpy as np

from workloads.spmd.gather_plan import Leaf, Plan, make_plan, moved
from workloads.spmd.processes import exchange, exchange_with, path_of
from workloads.spmd.stream import Read, Row, aligned_empty, piece_bytes
from workloads.spmd.transport import place, read, start_all_gather, start_send, start_shift

PyTree = Any
To = Literal["rank0", "all", "driver"]

CHUNK_BYTES = 64 * 2**20
# In flight are a piece that is sent, one on its way and one being put away; the rest is the network's and malloc's.
PIECES = 6
TELL_PERIOD_S = 5.0


def gather(tree: PyTree, to: To = "all", *, chunk_bytes: int = CHUNK_BYTES) -> PyTree:
    """Every leaf as one whole NumPy array: of global arrays the whole, of what each host holds all hosts' parts.

        losses = spmd.gather({"loss": 0.25, "grad_norm": 1.5})       # {"loss": [0.25, 0.31], ...}: one entry a host
        draws = spmd.gather(draws, to="rank0")                       # sharded over all hosts; whole on rank 0
        if draws is not None:                                        # None on the others, who never hold more than
            np.save("draws.npy", draws["theta"])                     # their own and a few pieces
        names = spmd.gather(np.array(rows_of_this_host))             # joined in the order of the ranks, uneven or not

    An array over several hosts comes back whole. What each host holds for itself (NumPy arrays, numbers, arrays on its
    own devices) is joined along the leading axis, whose length may differ between hosts; scalars become a vector.
    Bits are kept, of every dtype. Copies are not compared: see `assert_replicas_equal`.

    Args:
        tree: of one structure on all hosts; every host must call.
        to: "all"; "rank0": the others get None and none of the data; "driver": as rank0, in a form that a process
            without devices can hold: typed PRNG keys as their uint32 data.
        chunk_bytes: memory that may be used on each host, beyond its own data and the result; at least 32 KiB.

    Returns:
        The tree with NumPy arrays, which are the caller's own; typed PRNG keys come as such. None where `to` is not.

    Raises:
        ValueError: on every host, naming a leaf whose dtype or trailing shape differs between hosts.
        TimeoutError: naming the processes that did not call, or that got no further for five minutes.
    """
    if to not in ("rank0", "all", "driver"):
        raise ValueError(f"to={to!r}: rank0, all and driver are known")
    leaves = [Leaf(path_of(keys), value) for keys, value in jax.tree_util.tree_leaves_with_path(tree)]
    plan = make_plan(leaves)
    receives = to == "all" or jax.process_index() == 0
    arriving = zip(plan.shapes, leaves, strict=True) if receives else ()
    wholes = [np.empty(shape, leaf.carried_dtype) for shape, leaf in arriving]
    reads = _reads(leaves, plan, plan.rows[jax.process_index()])
    (_to_all if to == "all" else _to_first)(plan.rows, reads, wholes, chunk_bytes)
    if not receives:
        return None
    _keep(plan.common, _reads(leaves, plan, plan.common), wholes, chunk_bytes)
    keys = to != "driver"
    results = [leaf.wrapped(whole, keys=keys) for leaf, whole in zip(leaves, wholes, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(tree), results)


def _reads(leaves: list[Leaf], plan: Plan, row: Row) -> list[Read]:
    """How to read each block of a row that lies here."""
    held = [
        {bounds if leaf.is_global else moved(bounds, offset, leaf): read for bounds, read in leaf.held().items()}
        for leaf, offset in zip(leaves, plan.offsets, strict=True)
    ]
    return [held[block.leaf][block.bounds] for block in row.blocks]


def _to_first(rows: list[Row], reads: list[Read], wholes: list[np.ndarray], chunk_bytes: int) -> None:
    """One host after the other sends its row of bytes to rank 0, and waits for its turn as long as rank 0 gets on."""
    rank = jax.process_index()
    longest = max((row.num_bytes for row in rows[1:]), default=0)
    piece = piece_bytes(chunk_bytes // PIECES, longest)
    if rank == 0:
        _keep(rows[0], reads, wholes, chunk_bytes)
    empty = aligned_empty(piece if longest else 0)
    for source in range(1, len(rows)):
        if rank not in (0, source) or not rows[source].num_bytes:
            continue
        # A collective may not wait for long.
        messages = exchange_with(source if rank == 0 else 0)
        messages.all_gather("gather turn", None, moves=lambda: exchange().told("gather", 0))
        row = rows[source]
        under_way = (
            (row, start, start_send(empty if rank == 0 else row.read(reads, start, piece), source, 0))
            for start in range(0, row.num_bytes, piece)
        )
        _put_away(_tell_often(under_way), wholes)


def _tell_often(under_way: Iterable[tuple[Row, int, jax.Array]]) -> Iterator[tuple[Row, int, jax.Array]]:
    """What comes, while rank 0 lets the hosts that wait for their turn see every few seconds that it gets on."""
    told = -math.inf
    for item in under_way:
        if jax.process_index() == 0 and time.monotonic() - told >= TELL_PERIOD_S:
            told = time.monotonic()
            exchange().tell("gather", told)
        yield item


def _to_all(rows: list[Row], reads: list[Read], wholes: list[np.ndarray], chunk_bytes: int) -> None:
    """All hosts send their rows of bytes side by side: what fits at once, else pieces that go round all hosts."""
    rank, num_ranks = jax.process_index(), len(rows)
    own, length = rows[rank], max(row.num_bytes for row in rows)
    if num_ranks == 1 or length == 0:
        _keep(own, reads, wholes, chunk_bytes)
        return
    if (at_once := piece_bytes(chunk_bytes // (num_ranks + 1), length)) >= length:
        for row, stretch in zip(rows, read(start_all_gather(own.read(reads, 0, at_once))), strict=True):
            row.write(wholes, 0, stretch)
        return
    piece = piece_bytes(chunk_bytes // PIECES, length)

    def under_way() -> Iterator[tuple[Row, int, jax.Array]]:
        for start in range(0, length, piece):
            moving = place(own.read(reads, start, piece))
            for hop in range(1, num_ranks):
                moving = start_shift(moving)
                yield rows[(rank - hop) % num_ranks], start, moving
            own.copy(reads, wholes, start, piece)  # meanwhile

    _put_away(under_way(), wholes)


def _put_away(under_way: Iterable[tuple[Row, int, jax.Array]], wholes: list[np.ndarray]) -> None:
    """Each piece is put where it belongs when the next is on its way; a host that only sends waits likewise."""

    def arrive(row: Row, start: int, moved: jax.Array) -> None:
        stretch = read(moved)[0]
        if wholes:
            row.write(wholes, start, stretch)

    before = None
    for after in under_way:
        if before is not None:
            arrive(*before)
        before = after
    if before is not None:
        arrive(*before)


def _keep(row: Row, reads: list[Read], wholes: list[np.ndarray], chunk_bytes: int) -> None:
    """What lies here already."""
    piece = piece_bytes(chunk_bytes, row.num_bytes)
    for start in range(0, row.num_bytes, piece):
        row.copy(reads, wholes, start, piece)
