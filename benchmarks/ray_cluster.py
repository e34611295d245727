"""Ray's own test cluster, alone: `python ray_cluster.py NUM_NODES CPUS`, one node after another.

RAY_TMPDIR says where its files go; without it, Ray would name this cluster to everybody who calls `ray.init()` here.
Answers `{"call": ..., "up": ..., "address": ...}` (seconds since the epoch) when every node is alive; ends when its
standard input is closed.
"""

import json
import sys
import time


def main(num_nodes: int, num_cpus: int) -> None:
    from ray.cluster_utils import Cluster

    call = time.time()
    node = {"num_cpus": num_cpus, "num_gpus": 0, "object_store_memory": 128 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(num_nodes - 1):
            cluster.add_node(**node)
        cluster.wait_for_nodes()
        print(json.dumps({"call": call, "up": time.time(), "address": cluster.address}), flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
