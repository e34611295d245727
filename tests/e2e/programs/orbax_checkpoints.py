"""Orbax's CheckpointManager over all hosts: `orbax_checkpoints.py FOLDER`; what is there is restored, on any layout."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()

mesh = Mesh(np.array(jax.devices()), "d")
SPECS = {"rows": P("d"), "columns": P(None, "d"), "everywhere": P(), "step": P()}
table = np.sin(np.arange(32, dtype=np.float32)).reshape(8, 4)
start = {"rows": table, "columns": table * 2, "everywhere": table * 3, "step": np.int32(0)}
state = {name: jax.device_put(array, NamedSharding(mesh, SPECS[name])) for name, array in start.items()}

advance = jax.jit(lambda state: {name: array + 1 for name, array in state.items()}, donate_argnums=0)
options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
with ocp.CheckpointManager(Path(sys.argv[1]), options=options) as manager:
    found = manager.latest_step()
    if found is not None:
        state = manager.restore(found, args=ocp.args.StandardRestore(state))
        assert int(state["step"]) == found
    for step in range(found or 0, (found or 0) + 3):
        state = advance(state)
        manager.save(step + 1, args=ocp.args.StandardSave(state))
    manager.wait_until_finished()
    kept = manager.all_steps()
assert state["rows"].sharding.spec == SPECS["rows"]
sums = {name: float(np.sum(multihost_utils.process_allgather(array, tiled=True))) for name, array in state.items()}
print("value", json.dumps([found or 0, sorted(kept), *sums.values()]), flush=True)
