"""Commands of the machine, and who runs in a network namespace."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

NAMESPACES = Path("/run/netns")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def command(*argv: str, timeout_s: float = 30.0) -> str:
    """Runs a command of the machine; returns what it printed.

    Raises:
        RuntimeError: it failed, with what it wrote, or is not installed.
    """
    if shutil.which(argv[0], path=PATH) is None:
        raise RuntimeError(f"{argv[0]} is not installed")
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=timeout_s, check=False, env={**os.environ, "PATH": PATH}
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def wait_until(what: Callable[[], object], why: str, timeout_s: float = 20.0) -> None:
    """Waits until `what()` is true.

    Raises:
        TimeoutError: it is not after `timeout_s`; `why` says what was waited for.
    """
    deadline = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not after {timeout_s:g} s: {why}")
        time.sleep(0.02)


def pids_in(kind: str, inode: int) -> list[int]:
    """The machine's pids of the processes (zombies left out) in one namespace, `kind` as in /proc/PID/ns."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns" / kind).stat().st_ino == inode:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended, or is a zombie, which is in no namespace
            except PermissionError:
                continue  # not even root may look: none that root has started
    return found


def network_pids(namespace: str) -> list[int]:
    """The processes in a named network namespace; none where there is no such namespace."""
    try:
        return pids_in("net", (NAMESPACES / namespace).stat().st_ino)
    except FileNotFoundError:
        return []


def init_pid(namespace: str) -> int | None:
    """The machine's pid of PID 1 of the host in a network namespace; None where nothing has booted.

    Nothing is remembered, so no reused pid can be taken for a host's.
    """
    for pid in network_pids(namespace):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pids = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
        if len(pids) > 1 and pids[-1] == "1":
            return pid
    return None


def end_all_in(namespace: str) -> None:
    """SIGKILL to every process in a named network namespace, PID 1 first: the kernel ends a host's others with it."""
    if init := init_pid(namespace):
        _kill(init)
        with suppress(TimeoutError):  # its parent outside then ends by itself, and has reaped it
            wait_until(lambda: not network_pids(namespace), "", timeout_s=2)

    def empty() -> bool:
        left = network_pids(namespace)
        for pid in left:
            _kill(pid)
        return not left

    wait_until(empty, f"every process in {namespace} has ended")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
