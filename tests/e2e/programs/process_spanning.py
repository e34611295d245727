"""After JAX's guide to many processes (docs.jax.dev/en/latest/501/multiprocess.html): arrays that span processes.

Made in each of the ways that the guide has, and computed with as if there were one big device.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()

NUM_DEVICES = jax.device_count()
assert len(jax.local_devices()) * jax.process_count() == NUM_DEVICES
assert all(device.process_index == jax.process_index() for device in jax.local_devices())
if jax.process_index() == 0:
    print(jax.devices())

# from the whole, which every process has
table = np.arange(16 * NUM_DEVICES, dtype=np.float32).reshape(NUM_DEVICES, 16)
mesh = jax.make_mesh((NUM_DEVICES // 2, 2), ("i", "j"))
whole = jax.device_put(table, NamedSharding(mesh, P("i", "j")))
total = jnp.sum(jnp.sin(whole))

# from what each process has read for itself
rows = Mesh(np.array(jax.devices()), "batch")
sharding = NamedSharding(rows, P("batch"))
first = jax.process_index() * jax.local_device_count()
batch = jax.make_array_from_process_local_data(sharding, table[first : first + jax.local_device_count()])
assert batch.shape == table.shape and batch.addressable_shards[0].data.shape == (1, 16)

# from what lies on each device
pieces = [jax.device_put(jnp.array([first + k]), device) for k, device in enumerate(jax.local_devices())]
counted = jax.make_array_from_single_device_arrays((NUM_DEVICES,), sharding, pieces)
assert multihost_utils.process_allgather(counted, tiled=True).tolist() == list(range(NUM_DEVICES))

# a matrix product whose contraction is over devices; fetched after it was replicated
auto = jax.make_mesh((NUM_DEVICES // 2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = jax.device_put(table, NamedSharding(auto, P("a", "b")))
y = jax.device_put(table.T, NamedSharding(auto, P("b", None)))
product = jax.device_put(jax.nn.relu(x @ y), NamedSharding(auto, P(None, None)))

gradient = jax.jit(jax.grad(lambda x: jnp.mean(jnp.cos(x) ** 2)), out_shardings=NamedSharding(rows, P()))(batch)
value = [float(total), np.asarray(product).sum().item(), np.asarray(gradient)[:, 0].tolist()]
print("value", json.dumps(value), flush=True)
