"""After the same guide: some processes compute while the others have no part in it, or do something else."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()

half = jax.device_count() // 2
data = np.arange(64, dtype=np.float32).reshape(8, 8)


def mean_over(devices: list[jax.Device], scale: float) -> jax.Array:
    """By a program that spans these devices; an array without data in a process that has none of them."""
    mesh = jax.make_mesh((len(devices),), ("a",), devices=devices, axis_types=(jax.sharding.AxisType.Explicit,))
    x = jax.device_put(data, NamedSharding(mesh, P("a")))
    return jnp.mean(jnp.sin(scale * x))


# every process applies it, and those without a device get an array without data
everybody = [mean_over(jax.devices()[:half], 1.0), mean_over(jax.devices()[half:], 2.0)]
here = [float(result) for result in everybody if result.is_fully_addressable or result.addressable_shards]

# each half applies its own program, which the other never sees
first = all(device in jax.devices()[:half] for device in jax.local_devices())
second = all(device in jax.devices()[half:] for device in jax.local_devices())
if first:
    here.append(float(mean_over(jax.devices()[:half], 3.0)))
if second:
    here.append(float(mean_over(jax.devices()[half:], 4.0)))

# and they meet again
everywhere = jax.make_mesh((jax.device_count(),), ("a",))
met = jax.jit(jnp.sum, out_shardings=NamedSharding(everywhere, P()))(
    jax.device_put(data, NamedSharding(everywhere, P("a")))
)
expected = [np.mean(np.sin(scale * data)) for scale in (1.0, 2.0, 3.0, 4.0)]
possible = expected[:2] if not (first or second) else expected[0::2] if first else expected[1::2]
np.testing.assert_allclose(here, possible, rtol=1e-5)
print("value", json.dumps(float(met)), flush=True)
