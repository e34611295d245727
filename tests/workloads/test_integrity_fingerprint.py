"""Which changes the fingerprint sees: every kind of corruption, over every dtype."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workloads.integrity.fingerprint import (
    fingerprint_bits,
    fingerprint_blocks,
    fingerprint_host,
    fingerprint_packed,
)

HASHES = [jax.jit(fingerprint_bits), fingerprint_packed]
SHAPE = (16, 8)
DTYPES = [
    "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "int32", "uint16", "bool", "complex64",
    "int4", "key",
]  # fmt: skip

Bits = np.ndarray  # unsigned, one word for an element (two for complex64 and keys)
rng = np.random.default_rng(0)


def _digests(bits: Bits, dtype: str) -> list[tuple[int, ...]]:
    """Fingerprints of the array with these bits, one by each hash."""
    if dtype == "key":
        array = jax.random.wrap_key_data(jnp.asarray(bits))
    elif dtype == "int4":
        array = jnp.asarray(bits.view(np.int8)).astype(jnp.int4)
    elif dtype == "bool":
        array = jnp.asarray(bits.astype(bool))
    else:
        array = jnp.asarray(np.ascontiguousarray(bits).view(jnp.dtype(dtype)))
    return [tuple(np.asarray(hash_bits(array)).tolist()) for hash_bits in HASHES]


def _differ(one: Bits, other: Bits, dtype: str) -> bool:
    """Whether every hash tells them apart."""
    return all(first != second for first, second in zip(_digests(one, dtype), _digests(other, dtype), strict=True))


def _sample(dtype: str) -> Bits:
    """Random bits that are distinct where the dtype has room for it."""
    if dtype in ("key", "complex64"):
        return rng.integers(0, 2**32, size=(*SHAPE, 2), dtype=np.uint32)
    if dtype in ("bool", "int4"):
        return rng.integers(0, 2 if dtype == "bool" else 8, size=SHAPE, dtype=np.uint8)
    width = jnp.dtype(dtype).itemsize
    return rng.integers(0, 256, size=(*SHAPE, width), dtype=np.uint8).view(f"uint{8 * width}")[..., 0]


def _with(bits: Bits, change: Callable[[Bits], Any]) -> Bits:
    """A copy, changed in place, as one row of words."""
    changed = bits.reshape(-1).copy()
    change(changed)
    return changed.reshape(bits.shape)


def _put(bits: Bits, positions: Any, values: Any) -> Bits:
    return _with(bits, lambda flat: flat.__setitem__(positions, values))


def _pair(bits: Bits) -> tuple[int, int]:
    """Two words that differ, far apart."""
    flat = bits.reshape(-1)
    return 0, int(np.flatnonzero(flat != flat[0])[-1])


def _swap(bits: Bits) -> Bits:
    first, second = _pair(bits)
    flat = bits.reshape(-1)
    return _put(bits, [first, second], flat[[second, first]])


def _compensate(bits: Bits) -> Bits:
    """One word up by one and another down by one: the sum of all words stays."""
    flat = bits.reshape(-1)
    up, down = int(np.argmin(flat)), int(np.argmax(flat))
    return _put(bits, [up, down], [flat[up] + 1, flat[down] - 1])


CORRUPTIONS: dict[str, Callable[[Bits], Bits]] = {
    "lowest bit of the first word": lambda bits: _put(bits, 0, bits.reshape(-1)[0] ^ 1),
    "lowest bit of the last word": lambda bits: _put(bits, -1, bits.reshape(-1)[-1] ^ 1),
    "same bit of two words": lambda bits: _with(bits, lambda flat: np.bitwise_xor.at(flat, [3, 90], 1)),
    "same bit of all words": lambda bits: bits ^ 1,
    "swap of two far words": _swap,
    "swap of neighbours": lambda bits: _put(bits, slice(None), _swap_neighbours(bits.reshape(-1))),
    "swap of rows": lambda bits: bits[np.r_[1, 0, 2 : SHAPE[0]]],
    "swap of halves": lambda bits: np.concatenate([bits[SHAPE[0] // 2 :], bits[: SHAPE[0] // 2]]),
    "rotation by a word": lambda bits: np.roll(bits, 1),
    "rotation by a row": lambda bits: np.roll(bits, 1, axis=0),
    "rotation inside rows": lambda bits: np.roll(bits, 1, axis=1),
    "reversal": lambda bits: bits[::-1],
    "transposition": lambda bits: np.ascontiguousarray(np.swapaxes(bits, 0, 1)).reshape(bits.shape),
    "sorting": lambda bits: np.sort(bits.reshape(-1)).reshape(bits.shape),
    "shuffle": lambda bits: np.random.default_rng(1).permutation(bits.reshape(-1)).reshape(bits.shape),
    "compensating change": _compensate,
    "two compensating changes": lambda bits: _compensate(_compensate(bits)),
    "word zeroed": lambda bits: _put(bits, int(np.flatnonzero(bits.reshape(-1))[0]), 0),
    "row zeroed": lambda bits: _put(bits, slice(0, SHAPE[1]), 0),
    "all zeroed": lambda bits: bits * 0,
    "word copied over another": lambda bits: _put(bits, _pair(bits)[0], bits.reshape(-1)[_pair(bits)[1]]),
    "row copied over another": lambda bits: bits[np.r_[1, 1, 2 : SHAPE[0]]],
    "stale copy": lambda bits: np.random.default_rng(2).permutation(bits.reshape(-1)).reshape(bits.shape) ^ 1,
}


def _swap_neighbours(flat: Bits) -> Bits:
    place = int(np.flatnonzero(flat[1:] != flat[:-1])[0])
    order = np.arange(flat.size)
    order[[place, place + 1]] = place + 1, place
    return flat[order]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_every_corruption_changes_the_fingerprint(kind: str, dtype: str) -> None:
    bits = _sample(dtype)
    corrupted = CORRUPTIONS[kind](bits)
    assert not np.array_equal(corrupted, bits), "the corruption itself must change something"
    assert _digests(bits, dtype) == _digests(bits.copy(), dtype)
    assert _differ(bits, corrupted, dtype)


@pytest.mark.parametrize(("dtype", "width"), [("float32", 32), ("bfloat16", 16), ("float8_e4m3fn", 8)])
def test_all_single_bit_flips_are_told_apart(dtype: str, width: int) -> None:
    unsigned = np.dtype(f"uint{width}")
    base = rng.integers(0, 2**width, size=1003, dtype=np.uint64).astype(unsigned)
    places = np.arange(0, 1003, 7)
    flipped = np.repeat(base[None], len(places) * width, axis=0)
    masks = (1 << np.arange(width, dtype=np.uint64)).astype(unsigned)
    flipped[np.arange(len(flipped)), np.repeat(places, width)] ^= np.tile(masks, len(places))
    for hash_bits, clean in zip(HASHES, _digests(base, dtype), strict=True):
        digests = np.asarray(jax.jit(jax.vmap(hash_bits))(jnp.asarray(flipped.view(jnp.dtype(dtype)))))
        assert len({clean, *map(tuple, digests.tolist())}) == len(flipped) + 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.uint32(0x7FC00000), np.uint32(0x7FC00001)),  # two quiet NaNs
        (np.uint32(0x7FC00000), np.uint32(0xFFC00000)),  # NaN and -NaN
        (np.uint32(0), np.uint32(0x80000000)),  # 0.0 and -0.0
        (np.uint32(1), np.uint32(2)),  # subnormal numbers, which float arithmetic may flush to zero
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_values_that_compare_strangely_are_compared_by_their_bits(one: np.uint32, other: np.uint32, dtype: str) -> None:
    first, second = (np.full((4, 2), word, np.uint32) for word in (one, other))
    second[:3] = first[:3]
    assert _digests(first, dtype) == _digests(first.copy(), dtype)
    assert _differ(first, second, dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 1001])
def test_packed_words_leave_no_element_out(size: int) -> None:
    base = rng.integers(0, 256, size=size, dtype=np.uint8)
    flipped = [_put(base, place, base[place] ^ 128) for place in range(size)]
    assert all(_differ(base, other, "int8") for other in flipped[:: max(1, size // 20)])


def test_host_fingerprint_sees_bits() -> None:
    nan = np.array([np.nan, 0.0])
    assert fingerprint_host(nan) == fingerprint_host(nan.copy())
    assert fingerprint_host(nan) != fingerprint_host(np.array([np.nan, -0.0]))
    strided = np.arange(10)[::2]
    assert fingerprint_host(strided) == fingerprint_host(strided.copy())


def _as_array(bits: Bits, dtype: str) -> jax.Array:
    """The array with these bits; keys as their words, as checkpoints hold them."""
    if dtype in ("key", "bool"):
        return jnp.asarray(bits if dtype == "key" else bits.astype(bool))
    if dtype == "int4":
        return jnp.asarray(bits.view(np.int8)).astype(jnp.int4)
    return jnp.asarray(np.ascontiguousarray(bits).view(jnp.dtype(dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_blocks_add_up_to_the_whole_however_it_is_cut(dtype: str) -> None:
    bits = _sample(dtype)
    whole = _as_array(bits, dtype)
    for rows, columns in ((1, 1), (2, 1), (1, 4), (8, 2)):
        height, width = whole.shape[0] // rows, whole.shape[1] // columns
        total = np.zeros(2, np.uint32)
        for row, column in itertools.product(range(0, whole.shape[0], height), range(0, whole.shape[1], width)):
            # Cut on the host: XLA on the CPU may quiet a signalling NaN of 8 bits when it slices.
            block = _as_array(bits[row : row + height, column : column + width], dtype)
            start = (row, column, *[0] * (whole.ndim - 2))
            total += np.asarray(fingerprint_blocks([block], [start], whole.shape))[0]
        assert total.tolist() == np.asarray(HASHES[0](whole)).tolist(), (rows, columns)


def test_a_scalar_is_a_block_of_itself() -> None:
    scalar = jnp.float32(3.5)
    assert np.asarray(fingerprint_blocks([scalar], [()], ()))[0].tolist() == np.asarray(HASHES[0](scalar)).tolist()
