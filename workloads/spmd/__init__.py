"""SPMD helpers for JAX programs of your own: one process or many, under the launcher or not.

Import it as `from workloads import spmd`. It needs JAX and NumPy, and neither Ray nor the launcher.

- `map.spmd_map`: a function of one shard, run on all shards of all hosts
- `placing.shard`: data to the devices of all hosts
"""

from workloads.errors import ReplicaDivergenceError
from workloads.spmd.map import spmd_map
from workloads.spmd.placing import shard

__all__ = ["ReplicaDivergenceError", "shard", "spmd_map"]
