"""A rank that computes nothing and imports no JAX; `scale_hosts` puts it in the place of `launcher/rank/main.py`.

What it says is what a rank says that reports once a second: phases, `coordinator` and `joined`, a report and a line of
log each second, the launches, and twice a second its progress. There is no rendezvous, and nothing is compared with
the other ranks.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from launcher.rank.control import Control, Message
from launcher.rank.progress import Progress

PERIOD_S = 1.0
LAUNCHES_PER_REPORT = 10


def run_rank(descriptor: int, lease_s: float) -> NoReturn:
    """Waits for the one assignment on the control descriptor, reports `steps` times, and ends this process."""
    control = Control(descriptor, lease_s)
    assignment = control.receive()
    log = Path(assignment["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(opened, stream)
    progress = Progress(control.send)
    progress.start()
    _meet(assignment, control, progress)
    _report(int(assignment["settings"]["steps"]), progress)
    metrics = {"steps": float(assignment["settings"]["steps"])}
    control.send({"type": "result", "seconds": 0.0, "metrics": metrics, "diagnostics": {}, "result_digest": "none"})
    sys.stdout.flush()
    os._exit(0)


def _meet(assignment: Message, control: Control, progress: Progress) -> None:
    progress.emit({"type": "phase", "phase": "rendezvous"})
    if assignment["rank"] == 0:
        control.send({"type": "coordinator", "address": "nowhere"})
    else:
        control.receive()
    control.send({"type": "joined", "num_devices": assignment["num_ranks"], "local_devices": 1})
    progress.emit({"type": "phase", "phase": "run"})


def _report(steps: int, progress: Progress) -> None:
    def launched(step: int) -> dict[str, Any]:
        tail = [["train #0123456789ab", LAUNCHES_PER_REPORT]]
        return {"launches": LAUNCHES_PER_REPORT * step, "launch_hash": f"{step:064x}", "tail": tail}

    for step in range(1, steps + 1):
        time.sleep(PERIOD_S)
        progress.launches = lambda now=step: launched(now) | {"program": "train"}  # type: ignore[misc]
        progress.emit({"type": "report", "step": step, "total": steps, "metrics": {"loss": 1 / step}} | launched(step))
        print(f"step {step} of {steps}: nothing was computed", flush=True)
