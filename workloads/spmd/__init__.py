"""Tools for SPMD programs of your own in JAX: one process or many, under the launcher or not.

Import it as `from workloads import spmd`. It needs JAX, NumPy and psutil, neither Ray nor the launcher.

- `mapping.spmd_map`: a function of one shard, run on all shards of all hosts
- `placing.shard`: data to the devices of all hosts
- `broadcasting.broadcast`: one host's values on all hosts
- `gathering.gather`: arrays of all hosts into host memory; `unsharding.unshard`: a plain pytree for each shard
- `replicas.assert_replicas_equal`, `replicas.replica_report`: are all copies equal?
- `barriers.barrier`: a place that all processes must reach
- `memory.memory_report`: who holds how much memory, made where
- `visualizing.visualize`: which host and device holds which piece of an array
"""

from workloads.errors import ReplicaDivergenceError, ValueMismatchError
from workloads.spmd.barriers import barrier
from workloads.spmd.broadcasting import broadcast
from workloads.spmd.gathering import gather
from workloads.spmd.mapping import spmd_map
from workloads.spmd.memory import MemoryReport, memory_report
from workloads.spmd.placing import shard
from workloads.spmd.replicas import assert_replicas_equal, replica_report
from workloads.spmd.unsharding import unshard
from workloads.spmd.visualizing import visualize

__all__ = [
    "MemoryReport",
    "ReplicaDivergenceError",
    "ValueMismatchError",
    "assert_replicas_equal",
    "barrier",
    "broadcast",
    "gather",
    "memory_report",
    "replica_report",
    "shard",
    "spmd_map",
    "unshard",
    "visualize",
]
