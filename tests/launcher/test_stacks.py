"""Stacks of real processes: stuck in C++, stopped, without py-spy; and the short form of them."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from launcher import stacks
from launcher.stacks import innermost, kernel_state, take_stacks

PROGRAM = """
import faulthandler, signal, sys, threading
if sys.argv[1] == "handler":
    faulthandler.register(signal.SIGUSR2, all_threads=True)
def stuck_in_c():
    lock = threading.Lock()
    lock.acquire()
    print("ready", flush=True)
    lock.acquire()
def computing_in_c():
    print("ready", flush=True)
    10 ** 10**8  # one call of minutes in C, and Python's lock is held all the while
threading.Thread(target=threading.Event().wait, daemon=True).start()
{"stuck": stuck_in_c, "computing": computing_in_c}[sys.argv[2]]()
"""

Start = Callable[..., tuple[int, Path]]


def wait_for_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 20
    while kernel_state(pid) != state:
        assert time.monotonic() < deadline, f"state {kernel_state(pid)!r}, not {state!r}"
        time.sleep(0.01)


@pytest.fixture
def start(tmp_path: Path, children: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a process that gets stuck; returns its pid and its log."""
    for name in ("NATIVE_TIMEOUT_S", "PYTHON_TIMEOUT_S", "FAULTHANDLER_TIMEOUT_S"):
        monkeypatch.setattr(stacks, name, 30.0)  # each way is the one that is meant, however slow the machine

    def start(how: str, handler: bool = True) -> tuple[int, Path]:
        program, log = tmp_path / "program.py", tmp_path / "log"
        program.write_text(PROGRAM)
        with log.open("a") as stderr:
            arguments = [sys.executable, str(program), "handler" if handler else "-", how]
            process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=stderr, text=True)
        children.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        wait_for_state(process.pid, "S" if how == "stuck" else "R")
        return process.pid, log

    return start


def test_a_process_stuck_in_c_shows_native_and_python_frames(start: Start) -> None:
    pid, log = start("stuck")
    text = take_stacks(pid, log)
    assert text.startswith(f"process {pid}, state S")
    assert "lock_PyThread_acquire_lock" in text or "libpython" in text or "libc" in text
    assert text.count("Thread ") >= 2
    assert innermost(text) == "program.py:9 in stuck_in_c"
    wait_for_state(pid, "S")  # it goes on as before; just after it was let go, it runs for a moment


def test_a_process_that_holds_pythons_lock_in_c_shows_where(start: Start) -> None:
    pid, log = start("computing")
    assert innermost(take_stacks(pid, log)) == "program.py:12 in computing_in_c"


def test_a_stopped_process_shows_its_python_frames_and_stays_stopped(start: Start) -> None:
    pid, log = start("stuck")
    psutil.Process(pid).send_signal(signal.SIGSTOP)
    wait_for_state(pid, "T")
    text = take_stacks(pid, log)
    assert text.startswith(f"process {pid}, state T")
    assert innermost(text) == "program.py:9 in stuck_in_c"
    assert kernel_state(pid) == "T"


def test_without_py_spy_the_process_tells_itself(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, log = start("stuck")
    without_handler, _ = start("stuck", handler=False)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    log.write_text("what it wrote before\n")
    text = take_stacks(pid, log)
    assert innermost(text) == "program.py:9 in stuck_in_c"
    assert "py-spy is not installed" in text and "what it wrote before" not in text
    assert "no stack can be had of it (py-spy is not installed" in take_stacks(without_handler, log)
    wait_for_state(without_handler, "S")  # the signal would have ended it


def test_what_is_gone_is_told_so(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert kernel_state(process.pid) == ""
    text = take_stacks(process.pid, tmp_path / "log")
    assert "state gone" in text and "no stack can be had of it" in text


FAULTHANDLER = """process 7, state S
Thread 0x1 (most recent call first):
  File "/opt/lib/python3.12/threading.py", line 982 in run

Current thread 0x2 (most recent call first):
  File "/opt/lib/python3.12/site-packages/jax/_src/array.py", line 5 in _value
  File "/host/code/abc/workloads/transformer/loop.py", line 61 in train
  File "/host/code/abc/launcher/rank/main.py", line 100 in run_assignment
"""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (FAULTHANDLER, "loop.py:61 in train"),
        ("process 7, state T, in the kernel at do_signal_stop\nno stack can be had of it", ""),
        ("", ""),
        (
            'process 7, state S\nThread 9 (idle): "lease"\n    recv (/a/control.py:3)\n'
            'Thread 7 (idle): "MainThread"\n    wait (libgloo.so)\n    0x7f (libc.so.6)\n'
            "    _value (/x/lib/python3.11/site-packages/jax/_src/array.py:9)\n"
            '    train (/host/workloads/transformer/loop.py:61)\nThread 8 (idle): "x"\n    f (/b/other.py:1)\n',
            "loop.py:61 in train",
        ),
    ],
)
def test_the_short_form_is_the_innermost_frame_of_the_workload(text: str, place: str) -> None:
    assert innermost(text) == place
