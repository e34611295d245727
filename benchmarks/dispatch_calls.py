"""A client of `dispatch.py`: `gang CLUSTER`, or `actors ADDRESS NUM_HOSTS DEVICES_PER_HOST`.

Answers `{"psum", "answer"}`, seconds of the first call, once; then for each line `HOW NUMBER` of standard input
`{"calls"}`, the same of so many calls. Ends when its standard input is closed.
"""

import json
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

summed = jax.jit(jnp.sum)
SIZE = 1024


def make() -> jax.Array:
    """Numbers over the devices of all hosts."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    return jax.jit(lambda: jnp.ones(SIZE), out_shardings=sharding)()


def step(x: jax.Array) -> tuple[float, float]:
    """Their sum, and when it was done, in seconds since the epoch."""
    return float(summed(x)), time.time()


def timed(call: Callable[[], list[Any]]) -> dict[str, float]:
    """One call, which gives what `step` gives on each host."""
    start = time.time()
    answers = call()
    end = time.time()
    assert all(total == SIZE for total, _ in answers), answers
    return {"psum": max(done for _, done in answers) - start, "answer": end - start}


def serve(calls: dict[str, Callable[[], list[Any]]]) -> None:
    print(json.dumps(timed(next(iter(calls.values())))), flush=True)
    for line in sys.stdin:
        how, number = line.split()
        print(json.dumps({"calls": [timed(calls[how]) for _ in range(int(number))]}), flush=True)


def gang(cluster: str) -> None:
    import launcher

    with launcher.connect(cluster) as connected, connected.gang(folder=None) as made:
        x = made.run(make)
        serve({"call": lambda: made.run_each(step, x)})


def actors(address: str, num_hosts: int, devices_per_host: int) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Host:
        def start(self, coordinator: str, rank: int) -> None:
            jax.distributed.initialize(coordinator, num_hosts, rank)
            self.x = make()

        def method(self) -> tuple[float, float]:
            return step(self.x)

        def function(self, function: Callable[..., Any]) -> Any:
            return function(self.x)

    ray.init(address=address, log_to_driver=False, logging_level="error")
    flags = f"--xla_force_host_platform_device_count={devices_per_host}"
    environment = {"env_vars": {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}}
    nodes = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes()]
    kind = ray.remote(Host)
    hosts = [kind.options(scheduling_strategy=node, runtime_env=environment).remote() for node in nodes]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    ray.get([host.start.remote(coordinator, rank) for rank, host in enumerate(hosts)])
    serve(
        {
            "method": lambda: ray.get([host.method.remote() for host in hosts]),
            "function": lambda: ray.get([host.function.remote(step) for host in hosts]),
        }
    )


if __name__ == "__main__":
    if sys.argv[1] == "gang":
        gang(sys.argv[2])
    else:
        actors(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
