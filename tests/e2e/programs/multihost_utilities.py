"""Each function of `jax.experimental.multihost_utils` that a script is likely to call."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()

rank, ranks, here = jax.process_index(), jax.process_count(), jax.local_device_count()
multihost_utils.sync_global_devices("begin")

# what process 0 knows
seed = multihost_utils.broadcast_one_to_all(np.int32(17 if rank == 0 else -1))
tree = multihost_utils.broadcast_one_to_all({"a": np.full(3, rank, np.float32), "b": np.int32(rank)})
assert int(seed) == 17 and tree["a"].tolist() == [0, 0, 0] and int(tree["b"]) == 0
last = multihost_utils.broadcast_one_to_all(np.int32(rank), is_source=rank == ranks - 1)
assert int(last) == ranks - 1

# what each process has, one row for each of its devices
mine = np.sqrt(np.arange(rank * here, (rank + 1) * here, dtype=np.float32))
stacked = multihost_utils.process_allgather(mine)
assert stacked.reshape(ranks, here).shape == (ranks, here)
flat = multihost_utils.process_allgather(mine, tiled=True)

mesh = Mesh(np.array(jax.devices()).reshape(ranks, here), ("host", "device"))
array = multihost_utils.host_local_array_to_global_array(mine, mesh, P(("host", "device")))
doubled = jax.jit(lambda x: 2 * x)(array)
back = multihost_utils.global_array_to_host_local_array(doubled, mesh, P(("host", "device")))
np.testing.assert_array_equal(np.asarray(back), 2 * mine)

multihost_utils.assert_equal(np.asarray(flat), "all have the same")
if ranks > 1:
    try:
        multihost_utils.assert_equal(np.int32(rank), "these differ")
    except AssertionError:
        pass
    else:
        raise SystemExit("assert_equal has let a difference pass")
multihost_utils.sync_global_devices("end")
value = [int(seed), np.asarray(flat).tolist(), float(jnp.sum(doubled))]
print("value", json.dumps(value), flush=True)
