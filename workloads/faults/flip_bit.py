"""A bit flip in one copy of an array, as a faulty memory or link makes it."""

import math

import jax
import jax.numpy as jnp
import numpy as np


def flip_bit(array: jax.Array, device_number: int, index: int, bit: int) -> jax.Array:
    """The array, with one bit flipped in what one device holds; the other copies stay, so that replicas differ.

    Args:
        array: of any dtype, typed PRNG keys too, and with any sharding.
        device_number: position of the device among all devices of all processes, in the order of `Context.mesh`.
        index: of the element in that device's piece of the array, row-major; for a replicated array, in the array.
        bit: of the element, 0 being the lowest; of a complex number or a key, of its words one after another.

    Returns:
        An array of the same sharding; the same array if the device is on another process.

    Raises:
        ValueError: the array has no piece on that device, or the piece no such element, or the element no such bit.
    """
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    pieces = array.sharding.devices_indices_map(array.shape)
    if not 0 <= device_number < len(devices) or devices[device_number] not in pieces:
        raise ValueError(f"device {device_number} holds nothing of an array that lies on {len(pieces)} devices")
    device = devices[device_number]
    size = math.prod(array.sharding.shard_shape(array.shape))
    if not 0 <= index < size:
        raise ValueError(f"no element {index} on device {device_number}: it holds {size} of {array.dtype}{array.shape}")
    if not 0 <= bit < num_bits(array):
        raise ValueError(f"no bit {bit} in {array.dtype}: it has {num_bits(array)}")
    if device.process_index != jax.process_index():
        return array
    shards = [
        _flip(shard.data, index, bit) if shard.device == device else shard.data for shard in array.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)


def num_bits(array: jax.Array) -> int:
    """Bits of an element that mean anything: one of bool, four of int4."""
    if array.dtype == jnp.bool_:
        return 1
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return 8 * array.dtype.itemsize
    return jax.dtypes.itemsize_bits(array.dtype)


def _flip(piece: jax.Array, index: int, bit: int) -> jax.Array:
    """A piece on one device with the bit flipped, on the same device."""
    if jnp.issubdtype(piece.dtype, jax.dtypes.prng_key):
        words = jax.random.key_data(piece)
        width = words.size // piece.size
        flipped = _flip(words, index * width + bit // 32, bit % 32)
        return jax.random.wrap_key_data(flipped, impl=jax.random.key_impl(piece))
    host = np.array(piece)  # a copy, in row-major order
    flat = host.reshape(-1).view(np.uint8).reshape(piece.size, -1)
    flat[index, bit // 8] ^= np.uint8(1 << bit % 8)
    bits = num_bits(piece)
    if bits < 8 and jnp.issubdtype(piece.dtype, jnp.signedinteger):
        flat[index] = np.uint8(_extend_sign(int(flat[index, 0]), bits))
    return jax.device_put(host, next(iter(piece.devices())))


def _extend_sign(byte: int, bits: int) -> int:
    """NumPy holds a narrow integer in a byte that repeats its sign."""
    low = byte & ((1 << bits) - 1)
    return low | (0xFF & ~((1 << bits) - 1)) if low >> (bits - 1) else low
