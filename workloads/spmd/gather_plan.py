"""What of a tree lies where, and which host sends which block of it in a gather."""

import dataclasses
import hashlib
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from workloads.integrity.plan import bounds_of, holders
from workloads.spmd.processes import exchange
from workloads.spmd.stream import Block, Read, Row, carried, read_from


class Leaf:
    """A leaf as it lies here.

    Attributes:
        path: in the tree.
        value: array in host memory or on devices; of typed PRNG keys their data.
        is_global: whether it is one array over all hosts; else it is this host's part.
        dtype, carried_dtype: its own, and that in which it travels.
        element_axes: how many of the last axes make one element: of a key's data, or of the bytes of a text.
    """

    def __init__(self, path: str, value: Any):
        self.path = path
        self._impl = None
        kind = type(value).__name__
        if isinstance(value, jax.Array):
            if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
                self._impl = jax.random.key_impl(value)
                value = jax.random.key_data(value)
            alone = jax.process_count() == 1 and not isinstance(value.sharding, SingleDeviceSharding)
            self.is_global = alone or not value.is_fully_addressable
        else:
            value, self.is_global = np.asarray(value), False
        if value.dtype.hasobject:
            raise TypeError(f"cannot gather {path}: {kind} is neither an array nor a number")
        self.dtype = np.dtype(value.dtype)
        self.value: jax.Array | np.ndarray = carried(value) if isinstance(value, np.ndarray) else value
        self.carried_dtype = np.dtype(self.value.dtype)
        self.element_axes = self.value.ndim - value.ndim if self._impl is None else 1

    @property
    def rows_shape(self) -> tuple[int, ...]:
        """Shape of this host's part: a scalar is a row."""
        scalar = not self.is_global and self.value.ndim == self.element_axes
        return (1, *self.value.shape) if scalar else self.value.shape

    def held(self) -> dict[Any, Read]:
        """What lies here, by bounds within this host's part (or within the whole, if it is global)."""
        if isinstance(self.value, np.ndarray):
            return {tuple((0, size) for size in self.value.shape): read_from(self.value)}
        shards = self.value.addressable_shards
        return {bounds_of(shard.index, self.value.shape): read_from(shard.data) for shard in reversed(shards)}

    def wrapped(self, whole: np.ndarray, *, keys: bool) -> Any:
        """The whole that has arrived, in its own dtype; of keys as keys, or else as their data."""
        if self._impl is not None:
            return jax.random.wrap_key_data(whole, impl=self._impl) if keys else whole
        is_own = self.dtype == self.carried_dtype
        return whole if is_own else np.ndarray(whole.shape[:-1], self.dtype, buffer=whole)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Who sends what.

    Attributes:
        shapes: of the whole leaves.
        rows: by rank, what it sends.
        common: what every rank holds, so that nobody need send it.
        offsets: by leaf, where this host's rows begin in the whole.
    """

    shapes: list[tuple[int, ...]]
    rows: list[Row]
    common: Row
    offsets: list[int]


def make_plan(leaves: list[Leaf]) -> Plan:
    """The same on all hosts, worked out from what each holds.

    Raises:
        ValueError: leaves that do not fit together.
    """
    rank, num_ranks = jax.process_index(), jax.process_count()
    structure = [
        [leaf.path, str(leaf.dtype), leaf.is_global, leaf.rows_shape[0 if leaf.is_global else 1 :]] for leaf in leaves
    ]
    mine = [[leaf.rows_shape[0], [list(bounds) for bounds in leaf.held()]] for leaf in leaves if not leaf.is_global]
    digest = hashlib.sha256(repr(structure).encode()).hexdigest()
    posts = exchange().all_gather("gather", {"digest": digest, "parts": mine})
    if len({post["digest"] for post in posts}) > 1:
        _explain(exchange().all_gather("gather structures", structure))
    shapes: list[tuple[int, ...]] = []
    offsets: list[int] = []
    blocks: list[list[Block]] = [[] for _ in range(num_ranks)]
    common: list[Block] = []
    parts = [iter(post["parts"]) for post in posts]
    for number, leaf in enumerate(leaves):
        if leaf.is_global:
            for bounds, ranks in holders(leaf.value).items():
                sent = common if len(ranks) == num_ranks else blocks[min(ranks)]
                sent.append(Block(leaf=number, bounds=bounds, dtype=leaf.carried_dtype))
            shapes.append(leaf.value.shape)
            offsets.append(0)
            continue
        found = [next(part) for part in parts]
        starts = np.cumsum([0, *(rows for rows, _ in found)]).tolist()
        for owner, (_, held) in enumerate(found):
            for bounds in held:
                blocks[owner].append(
                    Block(leaf=number, bounds=moved(bounds, starts[owner], leaf), dtype=leaf.carried_dtype)
                )
        shapes.append((starts[-1], *leaf.rows_shape[1:]))
        offsets.append(starts[rank])
    return Plan(shapes=shapes, rows=[Row(sent) for sent in blocks], common=Row(common), offsets=offsets)


def moved(bounds: Any, start: int, leaf: Leaf) -> Any:
    """Bounds within a host's part as bounds within the whole."""
    if len(bounds) == leaf.element_axes:  # a scalar, or one key: a row
        return ((start, start + 1), *(tuple(pair) for pair in bounds))
    (first, last), *rest = bounds
    return ((first + start, last + start), *(tuple(pair) for pair in rest))


def _explain(structures: list[Any]) -> None:
    """
    Raises:
        ValueError: naming the first leaf that differs.
    """
    for rank, structure in enumerate(structures):
        first, other = structures[0], structure
        for number in range(max(len(first), len(other))):
            one, two = (part[number] if number < len(part) else None for part in (first, other))
            if one != two:
                raise ValueError(
                    f"gather: hosts hold different trees: {_describe(one)} on rank 0, {_describe(two)} on rank {rank}; "
                    "paths, dtypes and all axes but the first must be equal"
                )
    raise ValueError("gather: hosts hold different trees")


def _describe(leaf: Any) -> str:
    if leaf is None:
        return "no further leaf"
    path, dtype, is_global, shape = leaf
    return f"{path}: {dtype}{shape}" if is_global else f"{path}: {dtype}[rows{''.join(f', {size}' for size in shape)}]"
