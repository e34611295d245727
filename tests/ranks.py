"""Runs one function on several real JAX processes, without Ray: what the layout tests of the workloads stand on."""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.rank.template import FORK, IMPORT

ROOT = Path(__file__).resolve().parent.parent
WARM_TIMEOUT_S = 240.0  # on a machine that others use too
FORK_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 60.0


class RankTemplate:
    """The process that this pytest process forks its ranks from; it ends with us, however we end."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # or it cannot fork
        environment = os.environ | one_thread | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.rank_template", str(theirs.fileno())],
                env=environment, cwd=ROOT, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        self._channel.sendall(IMPORT)
        self._buffer = b""
        self._warm = False
        self._forked: list[int] = []
        self._codes: dict[int, int] = {}

    def fork(self, task: dict[str, Any]) -> int:
        """Starts a rank that runs the task; returns its pid."""
        self._hear(WARM_TIMEOUT_S, lambda: self._warm)
        assert self._warm, f"the template has not imported everything within {WARM_TIMEOUT_S:g} s"
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(self._channel, [FORK], [theirs.fileno()])
            self._hear(FORK_TIMEOUT_S, lambda: bool(self._forked))
            assert self._forked, f"no rank was forked within {FORK_TIMEOUT_S:g} s"
            ours.sendall(json.dumps(task).encode() + b"\n")
        return self._forked.pop()

    def wait(self, pids: list[int], timeout_s: float) -> list[int | None]:
        """How ranks have ended, minus the signal where one ended them; None: still running when time ran out."""
        self._hear(timeout_s, lambda: self._codes.keys() >= set(pids))
        return [self._codes.get(pid) for pid in pids]

    def kill(self, pids: list[int]) -> None:
        """Ends those of the ranks that still run, and forgets them all."""
        for pid in set(pids) - self._codes.keys():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(pid, signal.SIGKILL)
        self.wait(pids, KILL_TIMEOUT_S)
        for pid in pids:
            self._codes.pop(pid, None)

    def end(self) -> None:
        """Has the template end, and remove what its ranks have compiled."""
        self._channel.close()
        self._process.wait()

    def _hear(self, timeout_s: float, enough: Callable[[], bool]) -> None:
        """Hears what the template says until that is enough, or time is up."""
        deadline = time.monotonic() + timeout_s
        while not enough() and (left := deadline - time.monotonic()) > 0:
            self._channel.settimeout(left)
            try:
                data = self._channel.recv(1 << 16)
            except TimeoutError:
                return
            assert data, "the template of the tests' ranks has ended: its standard error says why"
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for message in map(json.loads, lines):
                match message["type"]:
                    case "warm":
                        self._warm = True
                    case "forked":
                        self._forked.append(message["pid"])
                    case "exit":
                        self._codes[message["pid"]] = message["code"]


@functools.cache
def _template() -> RankTemplate:
    template = RankTemplate()
    atexit.register(template.end)
    return template


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine for a coordination service that is started meanwhile: nobody else is given it."""
    with socket.socket() as reservation:  # bound but not listening, with SO_REUSEPORT as gRPC does
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]


def run_ranks(
    target: str,
    *,
    num_hosts: int,
    devices_per_host: int,
    timeout_s: float = 600.0,
    x64: bool = False,
    keep_programs: bool = True,
    folder: Path | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Calls `module:function(context, **kwargs)` on every rank and returns what each returned (JSON), in rank order.

    Special keyword arguments: `seed=`, and `context={...}` for further fields of the context. `target` may live in
    `tests/` (as `tests.workloads.some_programs:function`). The `folder` (by default a fresh temporary one, removed)
    holds `rank-K/` (each rank's output) and `storage/`. Ranks are fresh forks of one process. A rank K finds what ranks
    K before it have compiled, unless `keep_programs` is False.

    Raises:
        AssertionError: with the standard error of every rank, if one fails or time runs out.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return run_ranks(target, num_hosts=num_hosts, devices_per_host=devices_per_host, timeout_s=timeout_s,
                             x64=x64, keep_programs=keep_programs, folder=Path(temporary), **kwargs)  # fmt: skip
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices_per_host}"}
    logs = [folder / f"stderr-{rank}" for rank in range(num_hosts)]
    template, pids = _template(), []
    with reserved_port() as port:
        try:
            for rank, log in enumerate(logs):
                log.unlink(missing_ok=True)  # of a run before, in the same folder
                call = {"target": target, "rank": rank, "num_ranks": num_hosts, "port": port, "folder": str(folder),
                        "x64": x64, "keep_programs": keep_programs, "arguments": kwargs}  # fmt: skip
                pids.append(template.fork({"log": str(log), "environment": flags, "call": call}))
            codes = template.wait(pids, timeout_s)
        finally:
            template.kill(pids)
    if any(code != 0 for code in codes):  # None: still running when time ran out
        texts = "\n".join(f"--- rank {rank}\n{log.read_text()}" for rank, log in enumerate(logs))
        raise AssertionError(f"{target} on {num_hosts} x {devices_per_host}: exit codes {codes}\n{texts}")
    return [json.loads((folder / f"value-{rank}.json").read_text())["value"] for rank in range(num_hosts)]
