"""Are all copies of what should be equal equal, bit by bit, on all devices of all hosts?"""

from typing import Any

from workloads.integrity import Verdict
from workloads.spmd.processes import checker

PyTree = Any


def assert_replicas_equal(tree: PyTree, *, step: int = 0) -> Verdict:
    """Compares all copies of every leaf by fingerprints; no collective touches the data, which is read once.

        params = spmd.shard(params, mesh, P())
        for step in range(1000):
            params = train_step(params, batch)
            if step % 100 == 0:
                spmd.assert_replicas_equal(params, step=step)

    Args:
        tree: arrays of every dtype, typed PRNG keys, numbers. What lies on one host alone, such as a NumPy array,
            every host is taken to hold alike.
        step: where the caller is; hosts at different steps are a difference.

    Returns:
        The verdict: bytes compared, and bytes of which there is no second copy.

    Raises:
        ReplicaDivergenceError: on every host, naming leaf, hosts, devices, index and bits, and who is wrong if a
            majority, or an earlier check of a block that never changes, tells.
        TimeoutError: naming the processes that did not call.
        TypeError: a leaf that is neither array nor number.
    """
    verdict = replica_report(tree, step=step)
    verdict.raise_if_diverged()
    return verdict


def replica_report(tree: PyTree, *, step: int = 0) -> Verdict:
    """What `assert_replicas_equal` finds, as data; it raises for no difference.

        verdict = spmd.replica_report(params, step=step)
        for divergence in verdict.divergences:
            print(divergence.leaf, divergence.culprits, divergence.differences)

    Args, returns and other errors as there.
    """
    return checker().check(tree, step=step)
