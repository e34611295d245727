"""Ray Train's JaxTrainer: `python jax_trainer_fit.py ADDRESS NUM_WORKERS DEVICES FOLDER`, on a cluster that is up.

Answers `{"call": ..., "first_psum": ..., "num_devices": ...}` with times in seconds since the epoch.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any


def train(config: dict[str, Any]) -> None:
    """On every worker: the same psum as the bare processes', over all devices of all workers."""
    import jax
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    psum = jax.jit(
        jax.shard_map(lambda: jax.lax.psum(jax.lax.axis_index("data"), "data"), mesh=mesh, in_specs=(), out_specs=P())
    )
    total = int(psum().addressable_shards[0].data)
    answer = {"first_psum": time.time(), "num_devices": jax.device_count(), "psum": total}
    if jax.process_index() == 0:
        Path(config["answer"]).write_text(json.dumps(answer))


def settings(num_workers: int, devices: int, folder: str) -> dict[str, Any]:
    """Everything that is set; without the first two and JAX_PLATFORMS every worker would run alone on CPU."""
    variables = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    return {
        "jax_config": {"use_tpu": True},
        "scaling_config": {
            "use_tpu": False,
            "num_workers": num_workers,
            "resources_per_worker": {"CPU": devices},
            "placement_strategy": "SPREAD",
        },
        "run_config": {"storage_path": folder, "worker_runtime_env": {"env_vars": variables}},
    }


def main(address: str, num_workers: int, devices: int, folder: str) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer
    from ray.train.v2.jax.config import JaxConfig

    ray.init(address=address, log_to_driver=False, logging_level="error")
    answer = Path(folder) / "answer.json"
    answer.unlink(missing_ok=True)
    chosen = settings(num_workers, devices, folder)
    call = time.time()
    JaxTrainer(
        train,
        train_loop_config={"answer": str(answer)},
        jax_config=JaxConfig(**chosen["jax_config"]),
        scaling_config=ScalingConfig(**chosen["scaling_config"]),
        run_config=RunConfig(**chosen["run_config"]),
    ).fit()
    print(json.dumps({"call": call} | json.loads(answer.read_text())), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
