"""The variables that a rank process gets, and what a template imports."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cluster.processes import MARKER
from cluster.slices import MEGASCALE
from workloads.registry import WORKLOADS

# How long an agent lives without its supervisor, and a rank without its agent. Longer where there is a network between
# them: a connection that was cut for 8 s is back after 13, because TCP tries again after pauses that double.
LEASE_S = float(os.environ.get("SPMD_LAUNCH_LEASE_S", "10"))
THREADS_A_DEVICE = 16  # of XLA, in a user's process on emulated devices
JAX_PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}


def preimports() -> str:
    """Modules that a template imports: where the workloads' `run` functions live, and what those import late."""
    late = ["orbax.checkpoint", "matplotlib.figure", "sklearn.datasets"]
    return " ".join(["jax", "workloads.context", *(spec.run.partition(":")[0] for spec in WORKLOADS.values()), *late])


def rank_environment(
    *,
    host_folder: Path,
    code: Path,
    accelerator: str,
    devices_per_host: int,
    cluster_env: Mapping[str, str],
) -> dict[str, str]:
    """The variables of a rank process. What we own is always ours; of the rest the user's value stands.

    Args:
        host_folder: ours on this host's disk; home, temporary and working folders lie below it.
        code: the copy of our packages that the rank imports.
        accelerator: its kind, see `cluster.accelerators`; JAX takes its platform, or fails: never another one.
        devices_per_host: emulated devices, where the accelerator is `cpu`.
        cluster_env: `env` of the cluster file.
    """
    return _host_environment(accelerator, devices_per_host, cluster_env) | {
        "HOME": str(host_folder / "home"),
        "TMPDIR": str(host_folder / "tmp"),
        "PYTHONPATH": str(code),
        # The template is forked, so it must have one thread; these libraries start theirs when they are imported.
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "SPMD_LAUNCH_PREIMPORT": preimports(),
    }


def command_environment(
    *, host_folder: Path, accelerator: str, devices_per_host: int, cluster_env: Mapping[str, str]
) -> dict[str, str]:
    """The variables of a user's command: their home is theirs, and nothing of ours is on Python's path.

    Args:
        host_folder, accelerator, devices_per_host, cluster_env: as in `rank_environment`.
    """
    environment = _host_environment(accelerator, devices_per_host, cluster_env)
    if "PYTHONPATH" not in cluster_env:
        environment.pop("PYTHONPATH", None)  # the agent's: it leads to our code
    if "PATH" not in cluster_env:  # `python` in a shell script is the one that it is on the command line
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    environment = threads_for_user_code(accelerator, devices_per_host) | environment
    return environment | {"TMPDIR": str(host_folder / "tmp")}


def threads_for_user_code(accelerator: str, devices_per_host: int) -> dict[str, str]:
    """How many threads XLA has where code that is not ours runs on emulated devices; a user's `NPROC` goes before it.

    XLA's threads wait inside collectives: where there are as few as a small machine has cores, programs that are
    launched without waiting for them use them all up, and none ever ends (seen with JAX 0.10). Our own workloads wait
    often enough, and are slower by half with so many.

    Args:
        accelerator, devices_per_host: as in `rank_environment`.
    """
    threads = max(os.cpu_count() or 1, THREADS_A_DEVICE * devices_per_host)
    return {"NPROC": str(threads)} if accelerator == "cpu" else {}


def _host_environment(accelerator: str, devices_per_host: int, cluster_env: Mapping[str, str]) -> dict[str, str]:
    """What every process has that may run JAX on this host."""
    others = ("RAY_", "SPMD_LAUNCH_", MEGASCALE)  # an attempt over several slices brings MEGASCALE variables of its own
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    environment = inherited | dict(cluster_env)
    if accelerator == "cpu":
        flags = environment.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices_per_host}".strip()
    environment["JAX_PLATFORMS"] = JAX_PLATFORMS[accelerator]
    return environment | {
        "PYTHONHASHSEED": "0",  # iteration order of sets must not differ between hosts
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # a crash in C++ leaves the Python stack in the rank's log
        "SPMD_LAUNCH_LEASE_S": f"{LEASE_S:g}",
        MARKER: os.environ.get(MARKER, ""),
    }


def flags_that_matter(environment: Mapping[str, str]) -> dict[str, str]:
    """XLA_FLAGS, LIBTPU_INIT_ARGS and every JAX_* variable: what changes a program without changing its code."""
    names = [name for name in environment if name.startswith("JAX_") or name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    return {name: environment[name] for name in sorted(names)}
