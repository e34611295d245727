"""Ray Train's JaxTrainer on a Ray cluster of its own, which stays up, as ours does, while rounds are measured."""

import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from children import Child
from jax_trainer_fit import settings

PROGRAMS = Path(__file__).resolve().parent
TIMEOUT_S = 300.0


class RayCluster:
    """Ray's test cluster in a process of its own; used as a context manager.

    Args:
        num_hosts, devices_per_host: emulated.
        folder: a temporary one.
        python: the interpreter of all its processes, where it is not this one.

    Attributes:
        seconds: from the prompt to the last node, and from the call of `Cluster()`.
    """

    def __init__(self, num_hosts: int, devices_per_host: int, folder: Path, python: str = sys.executable):
        self.num_hosts = num_hosts
        self.devices_per_host = devices_per_host
        self.folder = Path(tempfile.mkdtemp(dir=folder, prefix="r"))
        self.environment = {"RAY_TMPDIR": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0"}
        cpus = str(devices_per_host + 1)  # one to spare, for JaxTrainer's controller
        program = str(PROGRAMS / "ray_cluster.py")
        self.python = python
        self.child = Child([program, str(num_hosts), cpus], self.folder, self.environment, python)

    def __enter__(self) -> "RayCluster":
        try:
            answer = self.child.answer(TIMEOUT_S)
        except BaseException:
            self.child.end()
            raise
        self.address = answer["address"]
        self.seconds = {"prompt": answer["up"] - self.child.prompt, "call": answer["up"] - answer["call"]}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.child.end()

    def fit(self) -> dict[str, Any]:
        """One `JaxTrainer.fit()` of one psum, from a new driver process.

        Returns:
            `prompt` (before the driver was made), `call` (of `fit`), `first_psum`: seconds since the epoch.

        Raises:
            RuntimeError: it failed, or the workers did not find each other.
        """
        arguments = [self.address, str(self.num_hosts), str(self.devices_per_host), str(self.folder)]
        program = str(PROGRAMS / "jax_trainer_fit.py")
        with Child([program, *arguments], self.folder, self.environment, self.python) as driver:
            answer = driver.answer(TIMEOUT_S)
            driver.wait(TIMEOUT_S)
        expected = self.num_hosts * self.devices_per_host
        if answer["num_devices"] != expected:
            raise RuntimeError(f"JaxTrainer's workers saw {answer['num_devices']} devices, expected {expected}")
        return answer | {"prompt": driver.prompt}

    def describe(self) -> dict[str, Any]:
        """What `fit` sets, for the report."""
        return settings(self.num_hosts, self.devices_per_host, "FOLDER")
