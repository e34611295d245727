"""Ours, through its command line alone: a state folder and a copy of the code of its own, up, submit, down."""

import itertools
import json
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from children import ROOT, Child, cpu_s

TIMEOUT_S = 300.0
POLL_S = 0.5
MARKER = "SPMD_LAUNCH_CLUSTER_ID"  # as in cluster.processes

# The entry point's two lines, and one that tells the moment of the call: after the imports, before the first check.
SUBMIT = """
import json, time
import launcher.cli.submit, launcher.submission
print(json.dumps({"call": time.time()}), flush=True)
from launcher.cli import main
main()
"""


class Installation:
    """A copy of the three packages and an empty state folder. The copy's digest can be changed: see `renew_code`.

    Args:
        folder: a temporary one.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.code = folder / "code"
        self.home = folder / "h"
        self.jobs = itertools.count()
        self._changes = itertools.count()
        for package in ("launcher", "cluster", "workloads"):
            leave_out = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(ROOT / package, self.code / package, ignore=leave_out)
        self.environment = {"PYTHONPATH": str(self.code), "SPMD_LAUNCH_HOME": str(self.home)}

    def renew_code(self) -> None:
        """Changes the digest of the code, so that nothing imported ahead fits the next job: its ranks start cold."""
        (self.code / "workloads" / "change.txt").write_text(str(next(self._changes)))

    def command(self, *arguments: str, timeout_s: float = TIMEOUT_S) -> tuple[float, str]:
        """Runs `spmd-launch ARGUMENTS`; returns its seconds from the prompt to its end, and its output."""
        program = "from launcher.cli import main; main()"
        with Child(["-c", program, *arguments], self.folder, self.environment) as child:
            output = child.wait(timeout_s)
            return time.time() - child.prompt, output


class OurCluster:
    """A cluster that is up inside the `with`; when the block is left, nothing of it is.

    Attributes:
        up_s: seconds from the prompt of `up` to its end.
    """

    def __init__(self, installation: Installation, num_hosts: int, devices_per_host: int):
        self.installation = installation
        self.num_hosts = num_hosts
        self.name = f"bench-{num_hosts}"
        self.file = installation.folder / f"{self.name}.yaml"
        self.file.write_text(
            f"name: {self.name}\nprovider: {{type: local}}\nnum_hosts: {num_hosts}\n"
            f"devices_per_host: {devices_per_host}\nstorage_path: {installation.folder / 'storage'}\n"
        )

    def __enter__(self) -> "OurCluster":
        try:
            self.up_s, _ = self.installation.command("up", str(self.file))
        except BaseException:
            self._down()
            raise
        self.cluster_id = json.loads(self._record("cluster.json").read_text())["cluster_id"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._down()
        left = self.processes()
        if left and error is None:
            raise RuntimeError(f"`down` of {self.name} left processes: {left}")

    def wait_until_warm(self, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until `status` says WARM.

        Raises:
            RuntimeError: it does not within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while json.loads(self.installation.command("status", self.name, "--json")[1])["state"] != "WARM":
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} was not WARM within {timeout_s:g} s")
            time.sleep(POLL_S)

    def submit(self, **settings: int) -> dict[str, Any]:
        """`spmd-launch submit psum-check`, from its prompt.

        Returns:
            `prompt`, `call` (of our code, its imports done) and `first_psum`: seconds since the epoch; `steps_per_s`
            and `reports` (pairs of a step and when the supervisor heard of it, in seconds of a monotonic clock).
        """
        job = f"job-{next(self.installation.jobs)}"
        chosen = [f"--set={key}={value}" for key, value in settings.items()]
        arguments = ["submit", "psum-check", "--cluster", self.name, "--name", job, *chosen]
        with Child(["-c", SUBMIT, *arguments], self.installation.folder, self.installation.environment) as child:
            call = child.answer(TIMEOUT_S)["call"]
            child.wait(TIMEOUT_S)
        folder = self.installation.home / "jobs" / job
        metrics = json.loads((folder / "results" / "summary.json").read_text())["metrics"]
        rows = _lines(folder / "metrics.jsonl")
        return {
            "prompt": child.prompt,
            "call": call,
            "first_psum": metrics["first_psum_unix_s"],
            "steps_per_s": metrics["steps_per_s"],
            "reports": [(row["step"], row["at"]) for row in rows if row["rank"] == 0],
        }

    def processes(self) -> list[int]:
        """Pids of everything that carries the cluster's marker."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARKER) == self.cluster_id:
                    found.append(process.pid)
            except psutil.Error:
                continue  # ended meanwhile, or another user's
        return found

    def cpu_s(self) -> float:
        """CPU seconds that the cluster's processes have used so far."""
        return cpu_s(self.processes())

    def _down(self) -> None:
        if self._record("request.json").exists():
            self.installation.command("down", self.name, "--force")

    def _record(self, name: str) -> Path:
        return self.installation.home / "clusters" / self.name / name


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
