"""A local cluster of two hosts x two devices in a state folder of its own, used through the command line alone."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from fault_cases import CHECKPOINT_EVERY, CLUSTER, DEVICES_PER_HOST, NUM_HOSTS, WORKLOADS
from warm_command import run_forked

from cluster.processes import ProcessId, marked_processes

TIMEOUT_S = 240.0
SETTLE_S = 2.0  # a template of one rank alone ends when that has been seen to end
ROOT = Path(__file__).resolve().parent.parent


class Bench:
    """A state folder and its cluster.

    Args:
        folder: a temporary one.
        warm: commands are forks of this process, which then may have no threads, instead of new interpreters: the same
            code without half a second of imports.

    Attributes:
        min_hosts: of the next `up`: the fewest hosts to go on with when others are lost.
        spares: of the next `up`: hosts besides, to take the place of lost ones.
    """

    def __init__(self, folder: Path, *, warm: bool = False):
        self.home = folder / "home"
        self.folder = folder
        self.warm = warm
        self.min_hosts = NUM_HOSTS  # on fewer hosts the bits would be others
        self.spares = 0
        self.environment = {**os.environ, "SPMD_LAUNCH_HOME": str(self.home), "PYTHONPATH": str(ROOT)}

    def command(self, *arguments: str, check: bool = True) -> str:
        """Runs `spmd-launch ARGUMENTS`; returns what it printed to both streams.

        Raises:
            RuntimeError: it failed, and `check` is set.
        """
        done = self.run(*arguments)
        if check and done.returncode:
            raise RuntimeError(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def json(self, *arguments: str) -> dict[str, Any]:
        """What `spmd-launch ARGUMENTS --json` prints."""
        value: dict[str, Any] = json.loads(self.run(*arguments, "--json").stdout)
        return value

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `spmd-launch ARGUMENTS`.

        Raises:
            subprocess.TimeoutExpired: it took more than TIMEOUT_S.
        """
        if self.warm:
            return run_forked(arguments, self.environment, TIMEOUT_S)
        return subprocess.run(
            [sys.executable, "-c", "from launcher.cli import main; main()", *arguments],
            env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    def up(self) -> None:
        """Brings it up; its hosts have compiled what they had before."""
        self._keep_compiled()
        file = self.folder / f"{CLUSTER}.yaml"
        file.write_text(
            f"name: {CLUSTER}\nprovider: {{type: local}}\nnum_hosts: {NUM_HOSTS}\nmin_hosts: {self.min_hosts}\n"
            f"spares: {self.spares}\n"
            f"devices_per_host: {DEVICES_PER_HOST}\nstorage_path: {self.folder / 'storage'}\n"
        )
        self.command("up", str(file))
        for host in self.record()["hosts"]:
            _copy_new(self.folder / "compiled" / host["name"], Path(host["folder"]) / "compile-cache")

    def down(self) -> None:
        self._keep_compiled()
        self.command("down", CLUSTER, "--force")

    def _keep_compiled(self) -> None:
        for cache in (self.home / "clusters" / CLUSTER / "hosts").glob("*/compile-cache"):
            _copy_new(cache, self.folder / "compiled" / cache.parent.name)

    def submit(
        self,
        workload: str,
        name: str,
        *more: str,
        settings: Sequence[str] | None = None,
        checkpoint_every: int = CHECKPOINT_EVERY,
    ) -> subprocess.CompletedProcess[str]:
        """Submits a job, by default with the small settings of `fault_cases`."""
        chosen = WORKLOADS[workload] if settings is None else settings
        words = [word for setting in chosen for word in ("--set", setting)]
        return self.run("submit", workload, "--name", name, *words, "--checkpoint-every", str(checkpoint_every), *more)

    def record(self) -> dict[str, Any]:
        """Of the cluster, as `up` left it."""
        value: dict[str, Any] = json.loads((self.home / "clusters" / CLUSTER / "cluster.json").read_text())
        return value

    def job_folder(self, name: str) -> Path:
        return self.home / "jobs" / name

    def job(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.job_folder(name) / "job.json").read_text())
        return value

    def events(self, name: str) -> list[dict[str, Any]]:
        return self.lines(name, "events.jsonl")

    def lines(self, name: str, file: str) -> list[dict[str, Any]]:
        """The objects in a file of a job's record that has one a line; none, if it is not there."""
        path = self.job_folder(name) / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def stacks(self, name: str, attempt: int) -> dict[int, str]:
        """The stacks that were kept of an attempt, by rank."""
        kept = (self.job_folder(name) / "logs").glob(f"attempt-{attempt}.rank-*.stack.txt")
        return {int(path.name.split(".")[1].removeprefix("rank-")): path.read_text() for path in kept}

    def ranks_left(self) -> list[str]:
        """Rank processes of any attempt of any job, when all jobs have ended; in words."""
        templates = _templates(self.record())
        ranks = [process for process in templates if not _is_child_of_agent(process)]
        deadline = time.monotonic() + SETTLE_S
        num_hosts = NUM_HOSTS + self.spares
        while len(templates) > num_hosts and not ranks and time.monotonic() < deadline:
            time.sleep(0.1)
            templates = _templates(self.record())
        surplus = templates if len(templates) > num_hosts else []  # each host has one for the next job
        return [_describe(process) for process in ranks or surplus]


def processes_of(record: Mapping[str, Any]) -> list[psutil.Process]:
    """Every process of a cluster, Ray's too.

    Args:
        record: of the cluster.
    """
    found = []
    for identity in marked_processes(record["cluster_id"], ProcessId.from_json(record["holder"])):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(identity.pid))
    return found


def left_of(record: Mapping[str, Any]) -> list[str]:
    """The same in words, of a cluster that is down, or in whose place another one is up."""
    return [_describe(process) for process in processes_of(record)]


def _templates(record: Mapping[str, Any]) -> list[psutil.Process]:
    """Templates of ranks and the ranks, which are forks of them."""
    return [process for process in processes_of(record) if "launcher.rank.template" in _words(process)]


def _is_child_of_agent(process: psutil.Process) -> bool:
    try:
        parent = process.parent()
        return parent is not None and "Agent" in _words(parent)
    except psutil.NoSuchProcess:
        return True  # it has ended meanwhile


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _describe(process: psutil.Process) -> str:
    return f"process {process.pid} ({_words(process)[:80]})"


def _copy_new(source: Path, target: Path) -> None:
    """Copies the files that are not there yet."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir() if source.is_dir() else ():
        if not (target / path.name).exists():
            shutil.copy2(path, target / path.name)
