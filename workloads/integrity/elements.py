"""One copy looked at closely: fingerprints of its chunks, and the bits of single elements."""

import dataclasses
import hashlib
import math

import jax
import jax.numpy as jnp
import numpy as np

from workloads.integrity.fingerprint import element_words, fingerprint_chunks
from workloads.integrity.plan import Leaf

DIGEST_BYTES = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalCopy:
    """A copy of a block that this process holds: single-device array, or array of `host_array`."""

    data: jax.Array | np.ndarray

    def chunks(self, start: int, num_chunks: int, size: int) -> bytes:
        """`DIGEST_BYTES` for each of consecutive chunks of `size` elements, the first beginning at element `start`."""
        if isinstance(self.data, jax.Array):
            found = fingerprint_chunks(self.data, start, num_chunks=num_chunks, size=size)
            return np.asarray(found).astype("<u4").tobytes()
        flat = self.data.reshape(-1)
        pieces = (flat[start + number * size : start + (number + 1) * size] for number in range(num_chunks))
        return b"".join(hashlib.blake2b(piece.tobytes(), digest_size=DIGEST_BYTES).digest() for piece in pieces)

    def elements(self, start: int, size: int) -> bytes:
        """The bits of `size` elements, `element_bytes` each, the lowest byte first."""
        if isinstance(self.data, jax.Array):
            return np.asarray(element_words(self.data, start, size=size)).astype("<u4").tobytes()
        return self.data.reshape(-1)[start : start + size].tobytes()


def element_bytes(leaf: Leaf) -> int:
    """Bytes of an element as `LocalCopy.elements` gives them: on a device at least one word."""
    return leaf.item_bytes if leaf.kind == "memory" else max(4, leaf.item_bytes)


def element_bits(leaf: Leaf) -> int:
    """Bits of an element that mean anything."""
    if leaf.kind == "key":
        return 8 * leaf.item_bytes
    dtype = jnp.dtype(leaf.dtype)
    if dtype.kind == "b":
        return 1
    return jax.dtypes.itemsize_bits(dtype) if dtype.kind in "fiucV" else 8 * leaf.item_bytes


def as_number(leaf: Leaf, raw: bytes) -> int:
    """The bits of an element as one unsigned number."""
    return int.from_bytes(raw, "little") & ((1 << element_bits(leaf)) - 1)


def as_hex(leaf: Leaf, raw: bytes) -> str:
    return f"0x{as_number(leaf, raw):0{math.ceil(element_bits(leaf) / 4)}x}"


def as_value(leaf: Leaf, raw: bytes) -> str:
    """An element as it is printed; empty for a key, which is nothing but its bits."""
    if leaf.kind == "key":
        return ""
    dtype, bits = jnp.dtype(leaf.dtype), element_bits(leaf)
    if bits < 8 and dtype.kind in "iuV":  # a number of less than a byte: its sign fills the byte that NumPy gives it
        number = as_number(leaf, raw)
        signed = jnp.issubdtype(dtype, jnp.signedinteger) and number >> (bits - 1)
        return str(number - (1 << bits) if signed else number)
    return str(np.frombuffer(raw[: dtype.itemsize], dtype)[0])
