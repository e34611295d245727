"""Throws a fault at a running job from outside, with real signals at real processes, as a bad day would."""

import dataclasses
import random
import signal
import time
from pathlib import Path
from typing import Any

import psutil
from bench_cluster import Bench
from soak_plan import Throw

from launcher.rank.damage import damage
from workloads.storage.folders import step_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thrown:
    """What was done.

    Attributes:
        at: the moment, on this process's monotonic clock.
        damaged: step of the checkpoint that was damaged; None: none was.
    """

    at: float
    damaged: int | None = None


def throw_from_outside(bench: Bench, job: str, throw: Throw) -> Thrown:
    """Makes the fault happen now.

    Raises:
        RuntimeError: the process that it is for is not where it should be.
    """
    if throw.kind == "kill-supervisor":
        victim = _supervisor(bench)
    else:
        rank = _rank(bench, job, throw.place)
        victim = _agent(rank) if throw.kind == "kill-agent" else rank
    damaged = None
    if throw.kind == "corrupt-checkpoint":
        victim.send_signal(signal.SIGSTOP)  # no newer one is begun, and nobody restores before the damage is done
        damaged = _damage_newest(Path(bench.job(job)["storage"]), random.Random(throw.step))
    moment = time.monotonic()
    victim.send_signal(signal.SIGSTOP if throw.kind == "freeze" else signal.SIGKILL)
    return Thrown(at=moment, damaged=damaged)


def _rank(bench: Bench, job: str, place: int) -> psutil.Process:
    ranks: list[dict[str, Any]] = bench.json("status", job)["ranks"]
    return psutil.Process(ranks[place]["pid"])


def _agent(rank: psutil.Process) -> psutil.Process:
    """The rank is a fork of its agent's template."""
    template = rank.parent()
    agent = template.parent() if template is not None else None
    if agent is None or "Agent" not in " ".join(agent.cmdline()):
        raise RuntimeError(f"process {rank.pid} is not a rank two generations below an agent, but below {agent}")
    return agent


def _supervisor(bench: Bench) -> psutil.Process:
    """A worker of the head's raylet, which is a child of the holder."""
    holder = psutil.Process(bench.record()["holder"]["pid"])
    workers = [worker for raylet in holder.children() for worker in raylet.children()]
    found = [worker for worker in workers if "Supervisor" in " ".join(worker.cmdline())]
    if len(found) != 1:
        raise RuntimeError(f"expected one supervisor below holder {holder.pid}, got {found}")
    return found[0]


def _damage_newest(storage: Path, draw: random.Random) -> int | None:
    """Damages the newest checkpoint that counts; returns its step, None if there is none."""
    manifests = sorted(storage.glob("step_*/manifest.json"))
    if not manifests:
        return None
    folder = manifests[-1].parent
    damage(folder, draw)
    return step_of(folder.name)
