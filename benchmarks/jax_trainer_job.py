"""A job on Ray Train's JaxTrainer, with a fault: `python jax_trainer_job.py ADDRESS NUM_WORKERS DEVICES FOLDER JOB`.

It trains the network of our workload `transformer` on the same text, as a user of JaxTrainer would write it: plain
`jax.jit`, a Ray checkpoint every few steps, and a start from the newest one. JOB is JSON: `settings` of the workload,
`checkpoint_every`, and `fault` and `fault_step` (or none). FOLDER gets `rank-K.jsonl` (step, pid, and when, on the
machine's monotonic clock), `fault.json` (when it happened) and `digest-K` (of the parameters at the end).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from jax_trainer_fit import settings

ROOT = Path(__file__).resolve().parent.parent
FAULTY_RANK = 1


def train(job: dict[str, Any]) -> None:
    """On every worker: trains to the last step, from the newest checkpoint if there is one."""
    import dataclasses

    import jax
    import numpy as np
    from ray import train as ray_train

    from workloads.params import parse
    from workloads.result import digest_arrays
    from workloads.transformer.config import Config
    from workloads.transformer.corpus import write_default
    from workloads.transformer.data import read_text, train_batches
    from workloads.transformer.train import Trainer

    rank, folder = ray_train.get_context().get_world_rank(), Path(job["folder"])
    config = parse(Config, job["settings"])
    mesh = jax.make_mesh((jax.device_count(), 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    (folder / f"text-{rank}").mkdir(exist_ok=True)
    text = read_text(write_default(folder / f"text-{rank}"), config.context_length)
    sizes = {"vocab_size": text.vocab_size, "padded_vocab_size": text.padded_vocab_size}

    def compiled(config: Config) -> tuple[Trainer, Any]:
        trainer = Trainer(config=config, mesh=mesh, **sizes)
        return trainer, jax.jit(trainer.train_chunk, donate_argnums=0, out_shardings=(trainer.state_shardings, None))

    trainer, program = compiled(config)
    first, state = restore(trainer, ray_train.get_checkpoint())
    if state is None:
        state = jax.jit(trainer.init_state, out_shardings=trainer.state_shardings)(jax.random.key(0))
    with (folder / f"rank-{rank}.jsonl").open("a") as log:
        while first < config.steps:
            last = min(first + config.steps_per_dispatch, config.steps)
            state, _ = program(state, train_batches(text, config, 0, first, mesh), np.int32(last - first))
            jax.block_until_ready(state)
            first = last
            log.write(json.dumps({"step": last, "at": time.monotonic(), "pid": os.getpid()}) + "\n")
            log.flush()
            if job["fault"] and rank == FAULTY_RANK and last >= job["fault_step"] and claim(folder):
                if job["fault"] == "other-program":
                    _, program = compiled(dataclasses.replace(config, learning_rate=2 * config.learning_rate))
                else:
                    make_happen(job["fault"])
            if last % job["checkpoint_every"] == 0:
                save(state, last, folder / f"save-{rank}")
    leaves = jax.tree_util.tree_leaves_with_path(state["params"])
    arrays = {jax.tree_util.keystr(path): np.asarray(leaf.addressable_data(0)) for path, leaf in leaves}
    (folder / f"digest-{rank}").write_text(digest_arrays(arrays))


def claim(folder: Path) -> bool:
    """Whether the fault is to happen: once in a job; says when."""
    path = folder / "fault.json"
    if path.exists():
        return False
    path.write_text(json.dumps({"at": time.monotonic()}))
    return True


def make_happen(fault: str) -> None:
    """The same as ours (`launcher.rank.inject`)."""
    if fault == "sleep":
        time.sleep(600.0)
    else:
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}[fault])


def save(state: Any, step: int, folder: Path) -> None:
    """Reports a step, which every worker must; the first brings the checkpoint."""
    import jax
    import numpy as np
    from ray import train as ray_train

    checkpoint = None
    if jax.process_index() == 0:
        folder.mkdir(exist_ok=True)
        leaves = [np.asarray(leaf.addressable_data(0)) for leaf in jax.tree.leaves(state)]
        np.savez(folder / "state.npz", *leaves, step=step)
        checkpoint = ray_train.Checkpoint.from_directory(folder)
    ray_train.report({"step": step}, checkpoint=checkpoint)


def restore(trainer: Any, checkpoint: Any) -> tuple[int, Any]:
    """The step and state of a checkpoint; 0 and None if there is none."""
    import jax
    import numpy as np

    if checkpoint is None:
        return 0, None
    with checkpoint.as_directory() as folder:
        saved = dict(np.load(Path(folder) / "state.npz"))
    like, tree = jax.tree.flatten(trainer.abstract_state)

    def placed(leaf: Any, value: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: value[index])

    leaves = [placed(leaf, saved[f"arr_{number}"]) for number, leaf in enumerate(like)]
    return int(saved["step"]), jax.tree.unflatten(tree, leaves)


def job_settings(num_workers: int, devices: int, folder: str) -> dict[str, Any]:
    """Those of the launch benchmark, and what a user sets who wants to survive; a compilation cache helps restarts."""
    chosen = settings(num_workers, devices, folder)
    chosen["run_config"]["worker_runtime_env"]["env_vars"] |= {
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": f"{folder}/cache",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    chosen["failure_config"] = {"max_failures": 3}
    return chosen


def main(address: str, num_workers: int, devices: int, folder: str, job: dict[str, Any]) -> None:
    os.dup2(2, 1)  # so that what a user sees is in one place
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer
    from ray.train.v2.jax.config import JaxConfig

    ray.init(address=address)
    chosen = job_settings(num_workers, devices, folder)
    JaxTrainer(
        train,
        train_loop_config={**job, "folder": folder},
        jax_config=JaxConfig(**chosen["jax_config"]),
        scaling_config=ScalingConfig(**chosen["scaling_config"]),
        run_config=RunConfig(**chosen["run_config"], failure_config=FailureConfig(**chosen["failure_config"])),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], json.loads(sys.argv[5]))
