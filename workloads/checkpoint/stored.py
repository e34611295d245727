"""A leaf as the storage holds it, and back; what no storage can hold is refused before anything is written.

Orbax is given nothing but arrays: typed keys as their raw words, and numbers, not all of which it reads back, as arrays
without dimensions. An array in the other byte order is written in this machine's. An empty one, which Orbax refuses,
has its shape and dtype in the manifest, and None in its place.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.integrity.fingerprint import host_array

_HELD = jax.Array | np.ndarray | np.generic | bool | int | float | complex


def check_storable(leaves: Mapping[str, Any]) -> None:
    """Refuses what could not be read back as it is.

    Args:
        leaves: `named_leaves` of the state.

    Raises:
        TypeError: naming the leaf, its type and what to do.
    """
    for name, leaf in leaves.items():
        what = _unstorable(leaf)
        if what:
            raise TypeError(
                f"no checkpoint can hold {name or 'the state'} ({what}): turn it into an array of numbers (`astype`, "
                "`view`), put it into the metadata, where text can go, or leave it out of the state"
            )


def _unstorable(leaf: Any) -> str:
    """What a leaf is that no storage can hold, or ''."""
    if is_key(leaf):
        return ""
    if isinstance(leaf, jax.Array):
        kind, dtype = "jax.Array", np.dtype(leaf.dtype)
    else:
        kind, dtype = type(leaf).__name__, np.asarray(leaf).dtype
    if not isinstance(leaf, _HELD) or isinstance(leaf, np.ma.MaskedArray):
        return kind
    return "" if _is_storable(dtype) else f"{kind} of {dtype}"


@functools.cache
def _is_storable(dtype: np.dtype) -> bool:
    """Whether TensorStore writes such arrays: it is asked, in memory."""
    import tensorstore as ts

    try:
        ts.open(
            {"driver": "zarr", "kvstore": {"driver": "memory"}, "dtype": dtype.name}, create=True, shape=[1]
        ).result()
    except (ValueError, NotImplementedError):
        return False
    return True


def to_stored(leaf: Any) -> Any:
    """What Orbax is given, or asked for, in place of a leaf without a typed key."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf if leaf.size else None
    array = host_array(leaf)
    return array if array.size else None


def from_stored(like: Any, found: Any) -> Any:
    """What Orbax has read in place of `like`, which is as `to_stored` takes it."""
    if isinstance(like, jax.Array | jax.ShapeDtypeStruct):
        return found if like.size else _empty(like)
    if found is None:
        return np.zeros_like(like)
    if isinstance(like, np.ndarray):
        return found.astype(like.dtype, copy=False)
    return found[()] if isinstance(like, np.generic) else found.item()


def _empty(like: Any) -> jax.Array:
    nothing = np.zeros(like.shape, like.dtype)
    if like.sharding is None:
        return jnp.asarray(nothing)
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: nothing[index])


def is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def without_key_type(leaf: Any) -> Any:
    """Typed keys as their raw words; an abstract key as their shape, dtype and sharding."""
    if not is_key(leaf):
        return leaf
    if isinstance(leaf, jax.Array):
        return jax.random.key_data(leaf)
    plain = jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(plain.shape, plain.dtype, sharding=leaf.sharding)


def with_key_type(like: Any, found: Any) -> Any:
    """`found` with the generator of `like`; `key_impl` takes keys and tracers, but no abstract key."""
    if not is_key(like):
        return found
    impls: list[Any] = []
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), like)
    return jax.random.wrap_key_data(found, impl=impls[0])
