"""A bit flip for tests: one bit of one copy, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workloads.faults import flip_bit


@pytest.mark.parametrize(
    ("value", "bit", "expected"),
    [
        (np.float32([1, 2, 3]), 31, [1, -2, 3]),
        (np.float16([1, 2, 3]), 15, [1, -2, 3]),
        (np.array([1, 2, 3], jnp.bfloat16), 15, [1, -2, 3]),
        (np.array([1, 2, 3], jnp.float8_e4m3fn), 7, [1, -2, 3]),
        (np.int32([1, 2, 3]), 4, [1, 18, 3]),
        (np.uint8([1, 2, 3]), 7, [1, 130, 3]),
        (np.array([True, True, False]), 0, [True, False, False]),
        (np.array([1, 2, 3], jnp.int4), 3, [1, -6, 3]),
        (np.array([1, 2, 3], jnp.uint4), 3, [1, 10, 3]),
        (np.complex64([1, 2 + 3j, 3]), 63, [1, 2 - 3j, 3]),
    ],
)
def test_one_bit_of_one_element(value: np.ndarray, bit: int, expected: list[complex]) -> None:
    array = jnp.asarray(value)
    flipped = flip_bit(array, 0, 1, bit)
    assert np.asarray(flipped).tolist() == expected
    assert (flipped.dtype, flipped.sharding) == (array.dtype, array.sharding)
    assert np.array_equal(np.asarray(flip_bit(flipped, 0, 1, bit)), value)
    assert np.array_equal(np.asarray(array), value)


def test_scalars_and_keys() -> None:
    assert float(flip_bit(jnp.float32(2), 0, 0, 31)) == -2
    keys = jax.random.split(jax.random.key(3), (2, 2))
    flipped = jax.random.key_data(flip_bit(keys, 0, 2, 35))
    changed = np.asarray(flipped) ^ np.asarray(jax.random.key_data(keys))
    assert np.argwhere(changed).tolist() == [[1, 0, 1]] and changed.max() == 8


@pytest.mark.parametrize(
    ("device", "index", "bit", "message"),
    [
        (9, 0, 0, "device 9 holds nothing of an array that lies on 1 devices"),
        (0, 3, 0, r"no element 3 on device 0: it holds 3 of int8\(3,\)"),
        (0, 0, 8, "no bit 8 in int8: it has 8"),
    ],
)
def test_what_is_not_there_cannot_be_flipped(device: int, index: int, bit: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flip_bit(jnp.zeros(3, jnp.int8), device, index, bit)
