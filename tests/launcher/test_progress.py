"""What a rank says of itself, from a thread: real processes whose main thread sleeps, computes, or holds the lock."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from launcher.rank.progress import LOOK_PERIOD_S, Progress, own_seconds
from tests.conftest import ROOT

Message = dict[str, Any]


def heard() -> tuple[Progress, list[Message]]:
    messages: list[Message] = []
    return Progress(messages.append), messages


def test_every_event_is_passed_on_and_moves_the_rank() -> None:
    progress, messages = heard()
    events: list[Message] = [
        {"type": "phase", "phase": "run"},
        {"type": "report", "step": 3, "total": 9, "metrics": {"loss": 1.0}},
        {"type": "verdict", "status": "ok"},
    ]
    for event in events:
        progress.emit(event)
    assert messages == events
    said = progress.message()
    assert (said["moves"], said["reports"], said["phase"], said["step"], said["total"]) == (1, 1, "run", 3, 9)


def test_a_phase_aside_is_told_and_moves_nobody_past_the_others() -> None:
    progress, messages = heard()
    progress.emit({"type": "phase", "phase": "profile", "aside": True})
    assert (progress.message()["moves"], progress.message()["phase"]) == (0, "profile")
    assert messages == [{"type": "phase", "phase": "profile", "aside": True}]


def test_the_time_from_report_to_report_leaves_other_phases_out() -> None:
    progress, _ = heard()
    assert "usual_s" not in progress.message()
    progress.emit({"type": "phase", "phase": "checkpoint"})
    time.sleep(0.3)
    progress.emit({"type": "phase", "phase": "run"})
    progress.emit({"type": "report", "step": 1, "total": 9})
    assert progress.message()["longest_s"] < 0.2
    time.sleep(0.3)
    progress.emit({"type": "report", "step": 2, "total": 9})
    assert 0.3 <= progress.message()["longest_s"] < 2.0


def test_a_launch_is_a_move_and_is_told() -> None:
    progress, _ = heard()
    time.sleep(0.2)
    assert progress.message()["since"] >= 0.2
    progress.launches = lambda: {"launches": 4, "program": "train"}
    said = progress.message()
    assert (said["launches"], said["program"]) == (4, "train")
    assert said["since"] < 0.2


@pytest.mark.parametrize(
    ("elapsed_s", "cpu_s", "waits", "own_s"),
    [
        (LOOK_PERIOD_S, 0.0, True, 0.0),  # waits for a peer
        (LOOK_PERIOD_S, 0.03, True, 0.03),  # computes in part
        (LOOK_PERIOD_S, 0.4, True, LOOK_PERIOD_S),  # on four cores
        (LOOK_PERIOD_S, 0.0, False, LOOK_PERIOD_S),  # the workload sleeps, or reads a file
        (1.0, 0.0, True, 1.0),  # it was stopped
    ],
)
def test_seconds_of_its_own(elapsed_s: float, cpu_s: float, waits: bool, own_s: float) -> None:
    assert own_seconds(elapsed_s, cpu_s, waits=waits) == own_s


PROGRAM = """
import json, sys, time
sys.path.insert(0, {root!r})
from launcher.rank.progress import Progress
said = []
def say(message):
    print(json.dumps(message), flush=True)
    said.append(message)
progress = Progress(say)
progress.start()
progress.emit({{"type": "phase", "phase": "run"}})
if {how!r} == "sleeps":
    time.sleep(600)
if {how!r} == "computes":
    while True:
        pass
if {how!r} == "holds the lock":
    while len(said) < 3:
        time.sleep(0.1)
    10 ** 10**8
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(children: "list[subprocess.Popen[str]]") -> Start:
    def start(how: str) -> "subprocess.Popen[str]":
        program = PROGRAM.format(root=str(ROOT), how=how)
        children.append(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True))
        return children[-1]

    return start


@pytest.mark.parametrize("how", ["sleeps", "computes"])
def test_it_speaks_while_the_main_thread_is_stuck(start: Start, how: str) -> None:
    process = start(how)
    assert process.stdout is not None
    said = [message for message in (json.loads(process.stdout.readline()) for _ in range(5))][1:]
    assert [message["type"] for message in said] == ["progress"] * 4
    assert [message["moves"] for message in said] == [1] * 4
    sinces = [message["since"] for message in said]
    assert sinces == sorted(sinces) and sinces[-1] - sinces[0] > 1.0
    assert said[-1]["own_s"] > 0.5 * sinces[-1], "nobody else is to blame: it does not wait in JAX"


def test_it_falls_silent_while_cpp_holds_pythons_lock(start: Start) -> None:
    process = start("holds the lock")
    assert process.stdout is not None
    said = [json.loads(process.stdout.readline())["type"] for _ in range(3)]
    assert said == ["phase", "progress", "progress"]
    time.sleep(5.0)
    process.kill()
    assert len(process.stdout.readlines()) <= 3, "of 10: none on a quiet machine"


# A callback of collections as JAX has one, which lets other threads take over; and threads that begin and end.
COLLECTS = """
import gc, sys, threading, time
from launcher.rank.progress import _main_thread_waits
sys.setswitchinterval(1e-5)
gc.set_threshold(1)
def collected(*_):
    for _ in range(2000):
        pass
gc.callbacks.append(collected)
until = time.monotonic() + 3.0
def look():
    while time.monotonic() < until:
        _main_thread_waits()
looking = threading.Thread(target=look)
looking.start()
while time.monotonic() < until:
    begun = threading.Thread(target=int)
    begun.start()
    begun.join()
looking.join()
print("collects:", gc.isenabled())
"""


def test_a_look_at_the_main_thread_does_not_hang_where_something_is_collected_meanwhile() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECTS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "collects: True\n"
