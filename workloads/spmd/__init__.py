"""SPMD helpers for JAX programs of your own: one process or many, under the launcher or not.

Import it as `from workloads import spmd`. It needs JAX and NumPy, and neither Ray nor the launcher.

- `mapping.spmd_map`: a function of one shard, run on all shards of all hosts
- `placing.shard`: data to the devices of all hosts
- `broadcasting.broadcast`: one host's values on all hosts
- `gathering.gather`: arrays of all hosts into host memory; `unsharding.unshard`: a plain pytree for each shard
- `replicas.assert_replicas_equal`, `replicas.replica_report`: are all copies equal?
"""

from workloads.errors import ReplicaDivergenceError
from workloads.spmd.broadcasting import broadcast
from workloads.spmd.gathering import gather
from workloads.spmd.mapping import spmd_map
from workloads.spmd.placing import shard
from workloads.spmd.replicas import assert_replicas_equal, replica_report
from workloads.spmd.unsharding import unshard

__all__ = [
    "ReplicaDivergenceError",
    "assert_replicas_equal",
    "broadcast",
    "gather",
    "replica_report",
    "shard",
    "spmd_map",
    "unshard",
]
