"""What a checkpoint holds comes back with its type and bits; what it cannot hold is refused at the first save."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from workloads import checkpoint
from workloads.context import Context

NUMBERS = {
    "integer": 2**62 + 1, "flag": True, "real": 0.1, "complex": 0.1 - 2j, "int64": np.int64(3), "int8": np.int8(-3),
    "bool": np.bool_(True), "float32": np.float32(0.1), "float16": np.float16(0.1), "float64": np.float64(0.1),
    "complex64": np.complex64(1 + 2j), "bfloat16": ml_dtypes.bfloat16(1.5),
}  # fmt: skip
DTYPES = [
    "?", "i1", "<i4", ">i4", ">u2", ">u8", "<f8", ">f4", ">f8", ">c8", ">c16", ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu,
]  # fmt: skip


def _noise(dtype: Any) -> np.ndarray:
    """Every pattern of bits may come, NaNs with a payload among them."""
    dtype = np.dtype(dtype)
    bits = np.random.default_rng(0).integers(0, 2 if dtype.kind == "b" else 256, 30 * dtype.itemsize, np.uint8)
    return bits.view(dtype).reshape(2, 3, 5)


def _same(context: Context, state: Any) -> None:
    """Whether a state comes back leaf by leaf with its type, dtype and bits."""
    checkpoint.save(context, 1, state, {})
    found = checkpoint.resume(context, lambda *_: state)
    assert found
    came = jax.tree.leaves(found.state)
    assert jax.tree.structure(found.state) == jax.tree.structure(state)
    for name, leaf in zip(jax.tree.leaves_with_path(state), came, strict=True):
        saved = name[1]
        assert type(leaf) is type(saved), name
        assert np.asarray(leaf).dtype.str == np.asarray(saved).dtype.str, name
        assert np.asarray(leaf).tobytes() == np.asarray(saved).tobytes(), name
        assert np.shape(leaf) == np.shape(saved), name


def test_numbers_come_back_as_what_they_were(context: Context) -> None:
    _same(context, NUMBERS)


def test_arrays_of_every_dtype_and_byte_order_come_back_bit_for_bit(context: Context) -> None:
    _same(context, [_noise(dtype) for dtype in DTYPES])


def test_arrays_without_elements_come_back(context: Context) -> None:
    _same(context, {"host": np.zeros((0, 3), ">f4"), "device": jnp.zeros((3, 0), jnp.bfloat16), "one": jnp.ones(1)})
    _same(context, {"host": np.zeros(0), "device": jnp.zeros((2, 0))})
    keys = jax.random.split(jax.random.key(0), 0)
    checkpoint.save(context, 1, {"keys": keys}, {})
    found = checkpoint.resume(context, lambda *_: {"keys": keys})
    assert found and (found.state["keys"].shape, found.state["keys"].dtype) == ((0,), keys.dtype)


def test_numbers_that_an_earlier_version_saved_are_read(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gave Orbax the numbers themselves, which it writes and does not all read back."""
    state = {name: number for name, number in NUMBERS.items() if name != "complex"}
    with monkeypatch.context() as earlier:
        earlier.setitem(vars(sys.modules[checkpoint.Saver.__module__]), "to_stored", lambda leaf: leaf)
        checkpoint.save(context, 1, state, {})
    found = checkpoint.resume(context, lambda *_: state)
    assert found and found.state == state
    assert {name: type(leaf) for name, leaf in found.state.items()} == {
        name: type(leaf) for name, leaf in state.items()
    }


@pytest.mark.parametrize(
    ("leaf", "what"),
    [
        ("text", "str"),
        (b"text", "bytes"),
        (2**70, "int of object"),
        (object(), "object"),
        (np.array(["text"]), "ndarray of <U4"),
        (np.array([0], "datetime64[s]"), r"ndarray of datetime64\[s\]"),
        (np.zeros(2, np.longdouble), "ndarray of float128"),
        (np.longdouble(2), "longdouble of float128"),
        (np.zeros(2, "i4,f4"), "ndarray of "),
        (np.zeros(0, "U3"), "ndarray of <U3"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "MaskedArray"),
        (jax.ShapeDtypeStruct((2,), jnp.float32), "ShapeDtypeStruct"),
    ],
)
def test_what_no_storage_can_hold_is_refused_at_the_first_save(
    context: Context, events: list[dict[str, Any]], leaf: Any, what: str
) -> None:
    with pytest.raises(TypeError, match=rf"no checkpoint can hold opt/name \({what}.*: turn it into an array of num"):
        checkpoint.save(context, 1, {"opt": {"name": leaf}, "w": jnp.ones(2)}, {})
    assert not events and not Path(context.storage).exists(), "before anything is written"


def test_an_array_that_jax_has_and_the_storage_has_not_is_refused(context: Context) -> None:
    with pytest.raises(TypeError, match=r"no checkpoint can hold w \(jax.Array of uint4\)"):
        checkpoint.save(context, 1, {"w": jnp.zeros(3, jnp.uint4)}, {})


@pytest.mark.parametrize(
    "state",
    [
        {"a/b": jnp.ones(2), "a": {"b": jnp.zeros(2)}},
        {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(2)}},  # Orbax would write one over the other
    ],
)
def test_leaves_that_would_be_written_over_each_other_are_refused(context: Context, state: Any) -> None:
    with pytest.raises(ValueError, match=r"2 leaves of the state have one name in a checkpoint, a[/.]b: rename a key"):
        checkpoint.save(context, 1, state, {})


def test_keys_with_a_slash_and_with_a_dot_are_two_names(context: Context) -> None:
    state = {"a/b": jnp.ones(2), "a.b": jnp.zeros(2)}
    checkpoint.save(context, 1, state, {})
    found = checkpoint.resume(context, lambda *_: state)
    assert found
    for name, leaf in state.items():
        np.testing.assert_array_equal(found.state[name], leaf)
