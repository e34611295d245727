"""The digest of a result: equal if and only if names, dtypes, shapes and bits are."""

import jax.numpy as jnp
import numpy as np
import pytest

from workloads.result import digest_arrays

BASE = {"draws": np.arange(6, dtype=np.float32).reshape(2, 3), "accept": np.array([True, False])}


def test_equal_arrays_have_one_digest_whatever_their_order_or_strides() -> None:
    digest = digest_arrays(BASE)
    assert len(digest) == 64 and int(digest, 16) >= 0
    assert digest_arrays(dict(reversed(BASE.items()))) == digest
    assert digest_arrays(BASE | {"draws": np.asfortranarray(BASE["draws"])}) == digest
    assert digest_arrays(BASE | {"draws": np.repeat(BASE["draws"], 2, axis=0)[::2]}) == digest
    assert digest_arrays(BASE | {"draws": jnp.asarray(BASE["draws"])}) == digest


@pytest.mark.parametrize(
    "draws",
    [
        BASE["draws"] + np.float32(1e-7) * np.eye(2, 3, dtype=np.float32),
        BASE["draws"].reshape(3, 2),
        BASE["draws"].reshape(1, 2, 3),
        BASE["draws"].astype(np.float64),
        BASE["draws"].view(np.int32),
        BASE["draws"].astype(">f4"),
        BASE["draws"].clip(1),
        BASE["draws"][::-1],
    ],
)
def test_any_difference_changes_the_digest(draws: np.ndarray) -> None:
    assert digest_arrays(BASE | {"draws": draws}) != digest_arrays(BASE)


def test_zeros_of_both_signs_and_nans_are_told_apart_by_their_bits() -> None:
    assert digest_arrays({"x": np.array([0.0])}) != digest_arrays({"x": np.array([-0.0])})
    assert digest_arrays({"x": np.array([np.nan])}) == digest_arrays({"x": np.array([np.nan])})


def test_names_and_shapes_of_scalars_count() -> None:
    scalar = digest_arrays({"x": np.float32(1)})
    assert scalar != digest_arrays({"y": np.float32(1)})
    assert scalar != digest_arrays({"x": np.array([1], np.float32)})


def test_narrow_floats_of_one_width_are_told_apart() -> None:
    kinds = [jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.uint8]
    assert len({digest_arrays({"x": np.zeros(3, jnp.dtype(kind))}) for kind in kinds}) == 3


def test_python_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="x: an array of Python objects"):
        digest_arrays({"x": np.array([object()])})
