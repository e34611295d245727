"""Runs `spmd-launch` in a fork of this process, which has imported it: what a command does without its start."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence

import launcher.bringup
import launcher.cli.clusters
import launcher.cli.live
import launcher.cli.results
import launcher.cli.submit
import launcher.submission  # noqa: F401 - all of these are for the forks
from launcher.cli import main

POLL_S = 0.02


def run_forked(
    arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end.

    Args:
        arguments: of `spmd-launch`.
        environment: all of its variables.
        timeout_s: after which it is killed.

    Raises:
        subprocess.TimeoutExpired: it was killed.
        RuntimeError: this process has several threads, of which a fork would have only one.
    """
    if threading.active_count() > 1:
        raise RuntimeError(f"cannot fork: {threading.active_count()} threads run")
    sys.stdout.flush()
    sys.stderr.flush()
    with (
        tempfile.TemporaryDirectory(prefix="slf-") as temporary,  # a fork's own are not removed at its end
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        pid = os.fork()
        if pid == 0:
            tempfile.tempdir = temporary
            _become_command(arguments, environment, out.fileno(), err.fileno())
        code = _wait(pid, timeout_s)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    if code is None:
        raise subprocess.TimeoutExpired(list(arguments), timeout_s, output=texts[0], stderr=texts[1])
    return subprocess.CompletedProcess(list(arguments), code, *texts)


def _become_command(arguments: Sequence[str], environment: Mapping[str, str], out: int, err: int) -> None:
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["spmd-launch", *arguments]
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter would end
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, timeout_s: float) -> int | None:
    """The exit code; None: it was killed, as the time was over."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_S)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
