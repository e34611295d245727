"""Makes the faults of `submit --inject` happen in this rank: `launcher.faults` says which there are.

They are the real thing: real signals, real limits of the kernel, real launches in another order. The agent, the raylet
and the holder are this process's ancestors, and are killed as such; the supervisor, which may be on another machine,
ends itself when it hears that it was to be killed (`launcher.job_run`).
"""

import os
import random
import resource
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import psutil

from launcher.faults import Fault
from launcher.rank.damage import damage
from launcher.rank.flip import flip
from workloads.storage.folders import step_of
from workloads.storage.manifest import MANIFEST

PyTree = Any

PATIENCE_S = 5.0  # less than what makes this rank one that stands still
OOM_SPARE_BYTES = 256 * 2**20
AGENT, RAYLET, HOLDER = 1, 2, 3  # generations above the template, which is this process's parent


class Injector:
    """Called by the workload's context after each report; see `workloads.context.Context.inject`.

    Args:
        faults: those that this rank makes happen in this attempt.
        rank: this process.
        storage: of the job's checkpoints.
        own_disk: whether that is this host's own copy of them.
        say: receives `{"type": "injected", ...}` before each fault, and which bit or checkpoint was damaged.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        *,
        rank: int,
        storage: str,
        say: Callable[[dict[str, Any]], None],
        own_disk: bool = False,
    ):
        self._faults = list(faults)
        self._rank = rank
        self._storage = storage
        self._own_disk = own_disk
        self._output: dict[int, int] = {}  # {stream: a copy of where it went}, while the disk is full
        self._full_since = 0  # step
        self._say = say
        self.launches: Any = None  # the context's log, once there is one
        self._armed: Fault | None = None  # one that is to happen with a launch
        self._slow_factor = 1.0
        self._last = time.monotonic()

    def at_start(self) -> None:
        """Makes happen what must before this process has touched a device, whatever its step."""
        for fault in [fault for fault in self._faults if fault.kind == "other-env"]:
            self._begin(fault, 0)
            jax.config.update("jax_default_matmul_precision", "bfloat16")

    def at_end(self) -> None:
        """Tells of a fault that was to happen with a launch after which none came."""
        if self._armed is not None and self.launches.fault is not None:
            why = "no program that spans all processes was launched after that step"
            self._say({"type": "warning", "text": f"--inject {str(self._armed)!r} did not happen: {why}"})

    def __call__(self, step: int, state: PyTree) -> PyTree:
        """Whatever is due at this step; returns the state, which only `flip-bit` changes."""
        self._drag()
        for fault in [fault for fault in self._faults if step >= fault.step]:
            if fault.kind == "flip-bit" and state is None:
                continue  # it waits for a step at which there is something to compare, see `Context.inject`
            self._begin(fault, step)
            state = self._make_happen(fault, step, state)
        return state

    def _begin(self, fault: Fault, step: int) -> None:
        self._faults.remove(fault)
        self._say({"type": "injected", "fault": fault.to_json(), "step": step})

    def _make_happen(self, fault: Fault, step: int, state: PyTree) -> PyTree:
        actions: dict[str, Callable[[], object]] = {
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
            "raise": lambda: _raise(f"raised by --inject at step {fault.step}"),
            "exit": lambda: os._exit(int(fault.options["code"])),
            "oom": _run_out_of_memory,
            "sleep": lambda: time.sleep(float(fault.options["seconds"])),
            "slow": lambda: self._slow_down(float(fault.options["factor"])),
            "corrupt-checkpoint": self._damage_newest_checkpoint,
            "disk-full": lambda: self._fill_disk(step),
            "skip-collective": lambda: self._arm(fault).skip_next(self._last_program()),
            "swap-programs": lambda: self._arm(fault).swap_next(),
            "other-program": lambda: self._arm(fault).recompile_next(changed=fault.place == self._rank),
            "kill-agent": lambda: _ancestor(AGENT).kill(),
            "kill-raylet": lambda: _ancestor(RAYLET).kill(),
            "kill-holder": lambda: _ancestor(HOLDER).kill(),
            "kill-supervisor": lambda: None,  # it has been told
        }
        if fault.kind == "flip-bit":
            return flip(state, fault, lambda event: self._say({**event, "step": step}))
        actions[fault.kind]()
        return state

    def _arm(self, fault: Fault) -> Any:
        """The log of the launches, of which the next one is to go astray.

        Raises:
            RuntimeError: there will be none.
        """
        if not self.launches.programs:
            raise RuntimeError(
                f"--inject {fault.kind}: this workload has compiled no program that spans all processes, "
                f"with context.compile, so there is no launch that could go astray"
            )
        self._armed = fault
        return self.launches

    def _last_program(self) -> str:
        """Name of the program, among those that span all processes, that was launched last.

        Raises:
            RuntimeError: there is none.
        """
        for name, _ in reversed(self.launches.snapshot().runs):
            known = [program.name for program in self.launches.programs.values() if program.entry == name]
            if known:
                return str(known[0])
        raise RuntimeError("--inject skip-collective: this workload has launched no program that spans all processes")

    def _slow_down(self, factor: float) -> None:
        self._slow_factor = factor

    def _drag(self) -> None:
        if self._slow_factor > 1.0:
            time.sleep(drag_s(time.monotonic() - self._last, self._slow_factor))
        self._last = time.monotonic()

    def saved(self, step: int, committed: bool) -> None:
        """A full disk has room again when a checkpoint has met it; one that was written before may end only now."""
        if self._output and (step > self._full_since or not committed):
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            for stream, copy in self._output.items():
                os.dup2(copy, stream)
                os.close(copy)
            self._output.clear()

    def _fill_disk(self, step: int) -> None:
        """From now on no file of this process grows: writes fail as on a full disk (EFBIG); its output is dropped."""
        self._full_since = step
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            self._output[stream] = os.dup(stream)
            os.dup2(null, stream)
        os.close(null)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def _damage_newest_checkpoint(self) -> None:
        """Damages the newest step here, then kills this process.

        Raises:
            RuntimeError: there is none.
        """
        steps = sorted(Path(self._storage).glob("step_*"))
        if not self._own_disk:  # where a step has its manifest only after a restore
            steps = self._committed_steps()
        if not steps:
            raise RuntimeError(
                f"--inject corrupt-checkpoint: there is no checkpoint yet in {self._storage}; let it come at a later "
                f"step, or save more often (--checkpoint-every N)"
            )
        largest = damage(steps[-1], random.Random())
        self._say({"type": "damaged", "step": step_of(steps[-1].name), "path": str(largest)})
        os.kill(os.getpid(), signal.SIGKILL)

    def _committed_steps(self) -> list[Path]:
        """Those that count, once a save that is under way has come to its end: it would be the newest one."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            steps = sorted(Path(self._storage).glob("step_*"))
            committed = [step for step in steps if (step / MANIFEST).exists()]
            if steps[-1:] == committed[-1:] or time.monotonic() > deadline:
                return committed
            time.sleep(0.05)


def drag_s(step_s: float, factor: float) -> float:
    """What a slow rank spends besides: as much time again as the step took, times the factor less one.

    A step in which something was compiled or loaded takes seconds once: a rank that slept for many times as long would
    be one that stands still, which is another fault.
    """
    return min(step_s * (factor - 1.0), PATIENCE_S)


def _raise(message: str) -> None:
    raise RuntimeError(message)


def _run_out_of_memory() -> None:
    """Allocates beyond a limit of this process's own: nothing else on the machine suffers."""
    limit = psutil.Process().memory_info().vms + OOM_SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    hoard = []
    while True:
        hoard.append(bytearray(2**24))


def _ancestor(generation: int) -> psutil.Process:
    process = psutil.Process().parent()
    for _ in range(generation):
        assert process is not None
        process = process.parent()
    assert process is not None
    return process
