"""What every thread of a rank is doing, whatever state the rank is in, and the short form of it for messages.

py-spy reads Python and native frames of a process that waits in a collective or computes. A stopped process gives up
only its Python frames. Where the kernel forbids to trace, the rank's own faulthandler prints them (`launcher.rank.main`
registers it). What the kernel itself knows stands at the top.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

NATIVE_TIMEOUT_S = 2.5
PYTHON_TIMEOUT_S = 1.2
FAULTHANDLER_TIMEOUT_S = 0.5
STATE_LETTERS = {
    psutil.STATUS_RUNNING: "R",
    psutil.STATUS_SLEEPING: "S",
    psutil.STATUS_IDLE: "S",
    psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "t",
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_DEAD: "X",
}
OURS = r"/launcher/rank/|/workloads/exchange\.py|/workloads/agreement/"  # where ranks wait for each other


def kernel_state(pid: int) -> str:
    """The kernel's letter for a process: R, S, D (disk), T (stopped), t (traced), Z (zombie), X; "" if it is gone."""
    try:
        return STATE_LETTERS.get(psutil.Process(pid).status(), "?")
    except psutil.NoSuchProcess:
        return ""


def take_stacks(pid: int, log: Path) -> str:
    """The stacks of all threads of a Python process, in at most four seconds.

    Args:
        pid: of the process, which may be stopped.
        log: where its standard error goes.
    """
    state = kernel_state(pid)
    waits_in = _read(Path(f"/proc/{pid}/wchan"))
    kernel = f"process {pid}, state {state or 'gone'}" + (f", in the kernel at {waits_in}" if len(waits_in) > 1 else "")
    failures = []
    ways = [("--native", NATIVE_TIMEOUT_S), ("--nonblocking", PYTHON_TIMEOUT_S)]
    if state == "T":
        ways = [("--nonblocking", NATIVE_TIMEOUT_S + PYTHON_TIMEOUT_S)]
    for option, timeout_s in ways:
        stacks, failure = _py_spy(pid, option, timeout_s)
        if stacks:
            return f"{kernel}\n{stacks}"
        failures.append(failure)
    stacks = _faulthandler(pid, log) if state != "T" else ""
    return f"{kernel}\n{stacks or 'no stack can be had of it'} ({'; '.join(dict.fromkeys(failures))})\n"


def innermost(stacks: str) -> str:
    """Where the main thread is, as `run.py:61 in train`: the innermost frame that is not a library's, or "".

    Args:
        stacks: as `take_stacks` returns it.
    """
    for function, file, line in _main_frames(stacks):
        if not re.search(rf"/site-packages/|/lib/python3|^<|{OURS}", file):
            return f"{os.path.basename(file)}:{line} in {function}"
    return ""


def main_stack(stacks: str) -> str:
    """The Python frames of the main thread, innermost first, one a line, without ours.

    Args:
        stacks: as `take_stacks` returns it.
    """
    frames = [frame for frame in _main_frames(stacks) if not re.search(OURS, frame[1])]
    return "".join(f"  {file}:{line} in {function}\n" for function, file, line in frames) or "  no stack of it\n"


def py_spy() -> str | None:
    """The program py-spy, beside this Python or on the path; None if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _py_spy(pid: int, option: str, timeout_s: float) -> tuple[str, str]:
    """The stacks and "", or "" and why there are none. It is told to fail early rather than to hold the process up."""
    command = py_spy()
    if command is None:
        return "", "py-spy is not installed"
    arguments = [command, "dump", option, "--full-filenames", "--pid", str(pid)]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return "", f"py-spy dump {option} took more than {timeout_s:g} s"
    if done.returncode or "Thread" not in done.stdout:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return "", f"py-spy dump {option} failed: {' '.join(lines[:4])}"
    return done.stdout, ""


def _faulthandler(pid: int, log: Path) -> str:
    """What the process itself writes to its log when asked; "" if it does not."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", _read(Path(f"/proc/{pid}/status")), re.MULTILINE)
    if caught is None or not int(caught[1], 16) >> (signal.SIGUSR2 - 1) & 1:
        return ""  # the signal would end it
    start = log.stat().st_size if log.exists() else 0
    os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + FAULTHANDLER_TIMEOUT_S
    text = ""
    while time.monotonic() < deadline:
        time.sleep(0.1)
        new = _read(log, start)
        if new and new == text:
            break  # written, and no more comes
        text = new
    return text


def _main_frames(stacks: str) -> Iterator[tuple[str, str, str]]:
    """Function, file and line of the main thread's Python frames, innermost first."""
    pid = re.match(r"process (\d+)", stacks)
    py_spy = re.search(rf"^Thread {pid[1]} .*\n((?:    .*\n?)*)", stacks, re.MULTILINE) if pid else None
    if py_spy:
        yield from re.findall(r"^ +(.+?) \(([^()]+\.py):(\d+)\)$", py_spy[1], re.MULTILINE)
        return
    main = stacks.rpartition("(most recent call first):")[2]  # faulthandler lists the main thread last
    for file, line, function in re.findall(r'^ +File "(.+)", line (\d+) in (.+)$', main, re.MULTILINE):
        yield function, file, line


def _read(path: Path, start: int = 0) -> str:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")
    except OSError:  # the process has ended, or the kernel does not say
        return ""
