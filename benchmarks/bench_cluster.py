"""A local cluster of two hosts x two devices in a state folder of its own, used through the command line alone."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from fault_cases import CHECKPOINT_EVERY, WORKLOADS

TIMEOUT_S = 240.0
ROOT = Path(__file__).resolve().parent.parent


class Bench:
    """A state folder and its cluster.

    Args:
        folder: a temporary one.

    Attributes:
        min_hosts: of the next `up`: the fewest hosts to go on with when others are lost.
        calm: `{workload: result_digest}` of runs without a fault, as far as they were made.
    """

    def __init__(self, folder: Path):
        self.home = folder / "home"
        self.folder = folder
        self.min_hosts = 2  # on fewer hosts the bits would be others
        self.environment = {**os.environ, "SPMD_LAUNCH_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        self.calm: dict[str, str] = {}

    def command(self, *arguments: str, check: bool = True) -> str:
        """Runs `spmd-launch ARGUMENTS`; returns what it printed to both streams.

        Raises:
            RuntimeError: it failed, and `check` is set.
        """
        done = self._run(*arguments)
        if check and done.returncode:
            raise RuntimeError(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def json(self, *arguments: str) -> dict[str, Any]:
        """What `spmd-launch ARGUMENTS --json` prints."""
        value: dict[str, Any] = json.loads(self._run(*arguments, "--json").stdout)
        return value

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from launcher.cli import main; main()", *arguments],
            env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    def up(self) -> None:
        file = self.folder / "faults.yaml"
        file.write_text(
            f"name: faults\nprovider: {{type: local}}\nnum_hosts: 2\nmin_hosts: {self.min_hosts}\ndevices_per_host: 2\n"
            f"storage_path: {self.folder / 'storage'}\n"
        )
        self.command("up", str(file))

    def down(self) -> None:
        self.command("down", "faults", "--force")

    def submit(
        self,
        workload: str,
        name: str,
        *more: str,
        settings: Sequence[str] | None = None,
        checkpoint_every: int = CHECKPOINT_EVERY,
        check: bool = False,
    ) -> str:
        """Submits a job, by default with the small settings of `fault_cases`; returns what was printed."""
        chosen = WORKLOADS[workload] if settings is None else settings
        words = [word for setting in chosen for word in ("--set", setting)]
        return self.command(
            "submit", workload, "--name", name, *words, "--checkpoint-every", str(checkpoint_every), *more, check=check
        )

    def record(self) -> dict[str, Any]:
        """Of the cluster, as `up` left it."""
        value: dict[str, Any] = json.loads((self.home / "clusters" / "faults" / "cluster.json").read_text())
        return value

    def job_folder(self, name: str) -> Path:
        return self.home / "jobs" / name

    def job(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.job_folder(name) / "job.json").read_text())
        return value

    def events(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.job_folder(name) / "events.jsonl").read_text().splitlines()]

    def ranks_left(self, job: dict[str, Any]) -> list[int]:
        """Rank processes of a job that has ended."""
        return [rank["pid"] for rank in job["ranks"] if rank["pid"] and psutil.pid_exists(rank["pid"])]
