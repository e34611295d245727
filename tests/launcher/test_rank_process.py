"""Real rank processes: what they end with is known exactly, and none of them outlives the hand that held it."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.processes import ProcessId
from launcher.rank.exit_codes import EXIT_LEASE_LOST
from launcher.rank_process import Message, RankProcess

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0


class Host:
    """An agent's folder, and modules that a rank imports ahead: each runs as code of the rank's main thread."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.modules = folder / "modules"
        for name in ("modules", "work", "ranks"):
            (folder / name).mkdir()

    def environment(self, code: str = "", lease_s: float = 30.0) -> dict[str, str]:
        """Variables of a rank whose main thread runs `code` before it says `warm`."""
        (self.modules / "run_ahead.py").write_text(code)
        return {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.modules}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SPMD_LAUNCH_LEASE_S": f"{lease_s:g}",
            "SPMD_LAUNCH_PREIMPORT": "run_ahead",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
            "JAX_PLATFORMS": "cpu",
        }

    def start(self, code: str = "", lease_s: float = 30.0) -> Coroutine[Any, Any, RankProcess]:
        return RankProcess.start(self.environment(code, lease_s), self.folder)

    def child_pid(self) -> int:
        """What `CHILD` wrote."""
        return int(until(lambda: (self.folder / "work" / "child").read_text().strip()))


CHILD = "import subprocess; open('child', 'w').write(f\"{subprocess.Popen(['sleep', '600']).pid}\\n\")\n"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def until(look: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """The first true value of `look()`; a file that is not there yet counts as false."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if value := look():
                return value
        except FileNotFoundError:
            pass
        time.sleep(0.01)
    raise AssertionError(f"not within {timeout_s} s")


def gone(pid: int) -> bool:
    return ProcessId.of(pid) is None


def how_it_ends(host: Host, code: str) -> int:
    async def run() -> int:
        rank = await host.start(code)
        return await asyncio.wait_for(rank.wait(), TIMEOUT_S)

    return asyncio.run(run())


# -- how it ended


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("import os; os._exit(0)", 0),
        ("import os; os._exit(7)", 7),
        ("import sys; sys.exit(3)", 3),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_exit_codes_and_signals_are_exact(host: Host, code: str, end: int) -> None:
    assert how_it_ends(host, code) == end


def test_what_a_standby_prints_is_kept(host: Host) -> None:
    how_it_ends(host, "print('to stdout', flush=True); raise RuntimeError('broken import')")
    log = (host.folder / "standby.log").read_text()
    assert "to stdout" in log and "RuntimeError: broken import" in log


def test_a_rank_is_recorded_for_the_holder_while_it_lives(host: Host) -> None:
    async def run() -> None:
        rank = await host.start("import time; time.sleep(600)")
        record = json.loads((host.folder / "ranks" / f"{rank.pid}.json").read_text())
        assert ProcessId.from_json(record["rank"]).pid == rank.pid and ProcessId.from_json(record["rank"]).alive()
        assert ProcessId.from_json(record["agent"]) == ProcessId.current()
        rank.kill()
        await rank.wait()
        assert list((host.folder / "ranks").iterdir()) == []

    asyncio.run(run())


# -- how it is ended


def test_kill_ends_a_frozen_rank_and_its_children(host: Host) -> None:
    async def run() -> None:
        rank = await host.start(CHILD + "import time; time.sleep(600)")
        child = await asyncio.to_thread(host.child_pid)
        for pid in (rank.pid, child):
            os.kill(pid, signal.SIGSTOP)
        rank.kill()
        assert await asyncio.wait_for(rank.wait(), TIMEOUT_S) == -signal.SIGKILL
        assert not rank.running
        rank.kill()  # of one that has ended: nothing
        await asyncio.to_thread(until, lambda: gone(child))

    asyncio.run(run())


def test_children_that_outlive_a_rank_are_ended(host: Host) -> None:
    assert how_it_ends(host, CHILD + "import os; os._exit(5)") == 5
    until(lambda: gone(host.child_pid()))


def test_a_rank_that_nobody_asks_for_is_ended(host: Host) -> None:
    async def run() -> int:
        rank = await host.start("import time; time.sleep(600)")
        await rank.assign({"type": "assign"}, lambda message: None, lambda: 1e9)
        return await asyncio.wait_for(rank.wait(), TIMEOUT_S)

    assert asyncio.run(run()) == -signal.SIGKILL


# -- the lease, held by hand: no agent, no parent that dies


@pytest.fixture
def leased(host: Host) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], socket.socket]]]:
    """Starts a rank on a socket that the test holds: `leased(code, lease_s, leads_group)`."""
    started: list[tuple[subprocess.Popen[bytes], socket.socket]] = []

    def start(code: str, lease_s: float, leads_group: bool = True) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        environment = host.environment(code, lease_s) | {"SPMD_LAUNCH_CONTROL_FD": str(theirs.fileno())}
        with (host.folder / "log").open("wb") as log, theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "launcher.rank.main"], env=environment, cwd=host.folder / "work",
                pass_fds=(theirs.fileno(),), start_new_session=leads_group, stderr=log,
            )  # fmt: skip
        started.append((process, ours))
        return process, ours

    yield start
    for process, ours in started:
        process.kill()
        process.wait()
        ours.close()


BUSY = {"sleeping": "import time; time.sleep(600)", "computing": "while True: pass", "waiting": ""}


@pytest.mark.parametrize("main_thread", BUSY)
def test_a_closed_descriptor_ends_the_rank(host: Host, leased: Callable[..., Any], main_thread: str) -> None:
    process, ours = leased(CHILD + BUSY[main_thread], lease_s=600.0)
    child = host.child_pid()
    start = time.monotonic()
    ours.close()
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert time.monotonic() - start < 5.0, "0.02 s on a quiet machine"
    until(lambda: gone(child))
    assert re.search("the agent closed the control descriptor|descriptor failed", (host.folder / "log").read_text())


@pytest.mark.parametrize("main_thread", BUSY)
def test_a_lease_that_runs_out_ends_the_rank(host: Host, leased: Callable[..., Any], main_thread: str) -> None:
    process, _ = leased(CHILD + BUSY[main_thread], lease_s=0.5)
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    until(lambda: gone(host.child_pid()))
    assert "no contact with the agent for 0.5 s: the lease has run out" in (host.folder / "log").read_text()


def test_a_lease_that_is_renewed_does_not_run_out(host: Host, leased: Callable[..., Any]) -> None:
    process, ours = leased(BUSY["sleeping"], lease_s=2.0)
    for _ in range(30):
        ours.sendall(b'{"type": "lease"}\n')
        time.sleep(0.1)
    assert process.poll() is None
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL  # and then it does


def test_a_rank_that_leads_no_group_ends_itself_alone(host: Host, leased: Callable[..., Any]) -> None:
    process, _ = leased(BUSY["sleeping"], lease_s=0.3, leads_group=False)
    assert process.wait(TIMEOUT_S) == EXIT_LEASE_LOST


AGENT = """
import asyncio, os, sys
from pathlib import Path
from launcher.rank_process import RankProcess
async def main():
    rank = await RankProcess.start(dict(os.environ), Path(sys.argv[1]))
    print(rank.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("frozen", [False, True])
def test_no_rank_outlives_its_agent(host: Host, frozen: bool) -> None:
    environment = host.environment(BUSY["sleeping"], lease_s=600.0)
    arguments = [sys.executable, "-c", AGENT, str(host.folder)]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        rank = ProcessId.of(int(agent.stdout.readline()))
        assert rank is not None
        until(
            lambda: "run_ahead" in (host.folder / "modules" / "run_ahead.py").name and _has_asked_the_kernel(rank.pid)
        )
        if frozen:
            os.kill(rank.pid, signal.SIGSTOP)
        agent.kill()
        agent.wait()
    assert rank.wait(5.0 if sys.platform == "linux" or not frozen else 0.0), "0.05 s on a quiet machine"


def _has_asked_the_kernel(pid: int) -> bool:
    """Whether its lease thread runs: `die_with_parent` has been called before that."""
    return psutil.Process(pid).num_threads() > 1


# -- a whole life


def test_a_rank_says_everything_before_it_ends(host: Host) -> None:
    heard, code = _run_psum_check(host, {"steps": "0"})
    kinds = [message["type"] for message in heard]
    assert code == 0
    assert kinds.index("coordinator") < kinds.index("joined") < kinds.index("verdict") < kinds.index("result")
    assert kinds[-1] == "result" and "warm" not in kinds
    assert heard[-1]["metrics"]["num_devices"] == 1


def test_what_a_workload_raises_is_told_before_the_end(host: Host) -> None:
    heard, code = _run_psum_check(host, {"size": "0"})
    (error,) = [message["error"] for message in heard if message["type"] == "error"]
    assert code == 1
    assert (error["type"], error["message"]) == ("ConfigError", "size=0: must be at least 1")
    assert error["traceback"].startswith("Traceback") and error["traceback"].rstrip().endswith(error["message"])
    assert "ConfigError" in (host.folder / "rank.log").read_text()


def _run_psum_check(host: Host, settings: dict[str, str]) -> tuple[list[Message], int]:
    """One whole attempt of one rank; returns what was heard and the exit code."""
    task = {
        "type": "assign", "workload": "psum-check", "settings": settings, "rank": 0, "num_ranks": 1, "seed": 0,
        "host": "h0", "address": "127.0.0.1", "output": str(host.folder / "output"), "storage": str(host.folder),
        "log": str(host.folder / "rank.log"), "jax_config": {}, "checkpoint_every": 0, "check_every": 0,
    }  # fmt: skip

    async def run() -> tuple[list[Message], int]:
        heard: list[Message] = []
        rank = await host.start()
        await rank.assign(task, heard.append, lambda: 0.0)
        return heard, await asyncio.wait_for(rank.wait(), 2 * TIMEOUT_S)

    return asyncio.run(run())
