"""Real rank processes: what they end with is known exactly, and none of them outlives the hand that held it."""

import asyncio
import dataclasses
import functools
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
from typing import Any, TypeVar

import pytest

from cluster.processes import ProcessId
from launcher.certificates import Authority, new_request, write_files
from launcher.rank.control import EXIT_LEASE_LOST
from launcher.rank_process import Exit, Message, RankProcess
from launcher.template_process import TemplateProcess

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0
Value = TypeVar("Value")


class Host:
    """An agent's folder, and a module where a rank looks for JAX: its code runs in the rank's main thread."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.modules = folder / "modules"
        self.log = folder / "rank.log"
        for name in ("modules", "work", "ranks"):
            (folder / name).mkdir()

    def environment(self, lease_s: float = 30.0) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.modules}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SPMD_LAUNCH_LEASE_S": f"{lease_s:g}",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
            "JAX_PLATFORMS": "cpu",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }

    def task(self, code: str | None, settings: dict[str, str] | None = None) -> Message:
        """An assignment that runs `code`; with None, `psum-check` on the real JAX."""
        if code is not None:
            (self.modules / "jax.py").write_text(code)
        return {
            "type": "assign", "workload": "psum-check", "settings": settings or {}, "rank": 0, "num_ranks": 1,
            "seed": 0, "host": "h0", "address": "127.0.0.1", "output": str(self.folder / "output"),
            "storage": str(self.folder), "log": str(self.log), "jax_config": {}, "checkpoint_every": 0,
            "check_every": 0, "attempt": 1, "attempt_id": "t.1.0", "resume": False, "keep": 3, "faults": [],
            "files": {}, "program_barrier": True, "black_box": str(self.folder / "launches"),
            "tls": self.certificate(),
        }  # fmt: skip

    def certificate(self) -> dict[str, str]:
        """Of rank 0 of the attempt, as its agent writes it."""
        key, request = new_request()
        issued = Authority.open(self.folder, "cluster").issue(request, "t.1.0", 0)
        return dataclasses.asdict(write_files(self.folder / "tls", key, issued))

    async def start(self, code: str) -> RankProcess:
        """A rank that runs `code`, forked from a template of its own, which `run` ends."""
        template = await self.template()
        rank = await template.fork()
        await rank.assign(self.task(code), lambda message: None, lambda: 0.0)
        return rank

    async def template(self) -> TemplateProcess:
        self._template = await TemplateProcess.start(self.environment(), self.folder, "digest")
        return self._template

    def run(self, program: Coroutine[Any, Any, Value]) -> Value:
        """Runs a test's coroutine, then ends the template."""

        async def run() -> Value:
            try:
                return await asyncio.wait_for(program, 2 * TIMEOUT_S)
            finally:
                await self._template.end()

        return asyncio.run(run())

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


def how_it_ends(host: Host, code: str) -> Exit:
    async def run() -> Exit:
        rank = await host.start(code)
        return await asyncio.wait_for(rank.wait(), TIMEOUT_S)

    return host.run(run())


# -- how it ended


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("import os; os._exit(0)", 0),
        ("import os; os._exit(7)", 7),
        ("import sys; sys.exit(3)", 1),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_exit_codes_and_signals_are_exact(host: Host, code: str, end: int) -> None:
    found = how_it_ends(host, code)
    assert (found.code, found.lost) == (end, "")


def test_the_most_memory_that_a_killed_rank_has_had_is_known(host: Host) -> None:
    end = how_it_ends(host, "import os; held = b'x' * (300 * 2**20); del held; os.kill(os.getpid(), 9)")
    assert end.code == -signal.SIGKILL
    assert 300 * 2**20 < end.peak_bytes < 500 * 2**20


def test_what_a_rank_prints_is_kept(host: Host) -> None:
    code = "import os; print('by Python'); os.system('echo by C'); raise RuntimeError('broken')"
    assert how_it_ends(host, code).code == 1
    log = host.log.read_text()
    assert "by Python" in log and "by C" in log and "RuntimeError: broken" in log


def test_a_rank_killed_at_its_birth_is_dead(host: Host) -> None:
    async def run() -> None:
        template = await host.template()
        for _ in range(20):  # a fork that does not lead its process group yet must not be missed
            rank = await template.fork()
            rank.kill()
            assert (await asyncio.wait_for(rank.wait(), TIMEOUT_S)).code == -signal.SIGKILL

    host.run(run())


def test_a_rank_is_recorded_for_the_holder_while_it_lives(host: Host) -> None:
    async def run() -> None:
        rank = await host.start("import time; time.sleep(600)")
        record = json.loads((host.folder / "ranks" / f"{rank.pid}.json").read_text())
        assert ProcessId.from_json(record["rank"]).pid == rank.pid and ProcessId.from_json(record["rank"]).alive()
        assert ProcessId.from_json(record["agent"]) == ProcessId.current()
        rank.kill()
        await rank.wait()
        assert list((host.folder / "ranks").iterdir()) == []

    host.run(run())


# -- how it is ended


def test_kill_ends_a_frozen_rank_and_its_children(host: Host) -> None:
    async def run() -> None:
        rank = await host.start(CHILD + "import time; time.sleep(600)")
        child = await asyncio.to_thread(host.child_pid)
        for pid in (rank.pid, child):
            os.kill(pid, signal.SIGSTOP)
        rank.kill()
        assert (await asyncio.wait_for(rank.wait(), TIMEOUT_S)).code == -signal.SIGKILL
        assert not rank.running
        rank.kill()  # of one that has ended: nothing
        await asyncio.to_thread(until, lambda: gone(child))

    host.run(run())


def test_children_that_outlive_a_rank_are_ended(host: Host) -> None:
    assert how_it_ends(host, CHILD + "import os; os._exit(5)").code == 5
    until(lambda: gone(host.child_pid()))


def test_a_rank_that_nobody_asks_for_is_ended_and_that_is_told(host: Host) -> None:
    async def run() -> Exit:
        rank = await (await host.template()).fork()
        await rank.assign(host.task(BUSY["sleeping"]), lambda message: None, lambda: 12.0)
        return await asyncio.wait_for(rank.wait(), TIMEOUT_S)

    end = host.run(run())
    assert (end.code, end.lost) == (-signal.SIGKILL, "its lease ran out: the supervisor had not asked for 12 s")


def test_an_agent_that_stood_still_knows_why_its_rank_is_gone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("rank_process", "template_process"):
        monkeypatch.setattr(f"launcher.{module}.LEASE_S", 2.0)
    monkeypatch.setattr(host, "environment", functools.partial(host.environment, 2.0))

    async def run() -> Exit:
        rank = await (await host.template()).fork()
        started = asyncio.Event()
        await rank.assign(host.task(BUSY["sleeping"]), lambda message: started.set(), lambda: 0.0)
        await started.wait()
        time.sleep(4.0)  # this process is the agent
        return await asyncio.wait_for(rank.wait(), TIMEOUT_S)

    end = host.run(run())
    assert end.code == -signal.SIGKILL
    assert re.fullmatch(r"its lease ran out: its agent had stood still for \d s", end.lost)


# -- the lease, held by hand: no agent, no parent that dies

RANK = "import sys; from launcher.rank.main import run_rank; run_rank(int(sys.argv[1]), float(sys.argv[2]))"


@pytest.fixture
def leased(host: Host) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], socket.socket]]]:
    """Starts a rank on a socket that the test holds: `leased(code, lease_s, leads_group)`."""
    started: list[tuple[subprocess.Popen[bytes], socket.socket]] = []

    def start(
        code: str | None, lease_s: float, leads_group: bool = True
    ) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        with host.log.open("ab") as log, theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", RANK, str(theirs.fileno()), str(lease_s)], env=host.environment(),
                cwd=host.folder / "work", pass_fds=(theirs.fileno(),), start_new_session=leads_group, stderr=log,
            )  # fmt: skip
        if code is not None:
            ours.sendall(json.dumps(host.task(code)).encode() + b"\n")
        started.append((process, ours))
        return process, ours

    yield start
    for process, ours in started:
        process.kill()
        process.wait()
        ours.close()


BUSY = {"sleeping": "import time; time.sleep(600)", "computing": "while True: pass"}


@pytest.mark.parametrize("main_thread", BUSY)
def test_a_closed_descriptor_ends_the_rank(host: Host, leased: Callable[..., Any], main_thread: str) -> None:
    process, ours = leased(CHILD + BUSY[main_thread], lease_s=600.0)
    child = host.child_pid()
    start = time.monotonic()
    ours.close()
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert time.monotonic() - start < 30.0, "0.02 s on a quiet machine"
    until(lambda: gone(child))
    assert re.search("the agent closed the control descriptor|descriptor failed", host.log.read_text())


@pytest.mark.parametrize("main_thread", BUSY)
def test_a_lease_that_runs_out_ends_the_rank(host: Host, leased: Callable[..., Any], main_thread: str) -> None:
    process, ours = leased(CHILD + BUSY[main_thread], lease_s=2.0)

    def child_begun() -> str:
        ours.sendall(b'{"type": "lease"}\n')  # it is held as long as that takes
        return (host.folder / "work" / "child").read_text().strip()

    child = int(until(child_begun))
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    until(lambda: gone(child))
    assert "no contact with the agent for 2 s: the lease has run out" in host.log.read_text()


def test_a_rank_without_a_task_holds_its_lease_too(host: Host, leased: Callable[..., Any]) -> None:
    process, ours = leased(None, lease_s=600.0)
    ours.close()
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL


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


SAVES = """
import sys, time
from launcher.rank.control import Control
control, taken = Control(int(sys.argv[1]), 60.0), []
assert control.receive()["type"] == "go", "a request is no message for those who wait for one"
control.give_saves_to(lambda number: (taken.append(number), control.send({"taken": taken})))
time.sleep(60)
"""


def test_checkpoints_that_are_asked_for_before_anybody_takes_them_are_kept_in_order() -> None:
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with theirs, ours.makefile() as said:
        process = subprocess.Popen(
            [sys.executable, "-c", SAVES, str(theirs.fileno())], env=environment, pass_fds=(theirs.fileno(),)
        )
        try:
            ours.settimeout(TIMEOUT_S)
            ours.sendall(b'{"type": "save", "number": 1}\n{"type": "save", "number": 2}\n{"type": "go"}\n')
            assert [json.loads(said.readline())["taken"] for _ in range(2)] == [[1], [1, 2]]
            ours.sendall(b'{"type": "save", "number": 3}\n')
            assert json.loads(said.readline())["taken"] == [1, 2, 3]
        finally:
            process.kill()
            process.wait()
            ours.close()


AGENT = """
import asyncio, json, os, sys
from pathlib import Path
from launcher.template_process import TemplateProcess
async def main():
    template = await TemplateProcess.start(dict(os.environ), Path(sys.argv[1]), "digest")
    rank = await template.fork()
    await rank.assign(json.loads(sys.argv[2]), lambda message: None, lambda: 0.0)
    print(template.process.pid, rank.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a frozen process is ended by the holder elsewhere")
@pytest.mark.parametrize("frozen", [(), ("rank",), ("template",), ("template", "rank")], ids=str)
@pytest.mark.parametrize("victim", ["agent", "template"])
def test_no_rank_outlives_its_agent_or_template(host: Host, victim: str, frozen: tuple[str, ...]) -> None:
    task = json.dumps(host.task("open('at-work', 'w'); " + BUSY["sleeping"]))
    arguments = [sys.executable, "-c", AGENT, str(host.folder), task]
    with subprocess.Popen(arguments, env=host.environment(600.0), stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        template, rank = (ProcessId.of(int(pid)) for pid in agent.stdout.readline().split())
        assert template is not None and rank is not None
        until((host.folder / "work" / "at-work").exists)
        for name in frozen:
            {"template": template, "rank": rank}[name].signal(signal.SIGSTOP)
        os.kill(agent.pid if victim == "agent" else template.pid, signal.SIGKILL)
        ended = rank.wait(TIMEOUT_S) and template.wait(TIMEOUT_S)
        agent.kill()
    assert ended, "0.05 s on a quiet machine"


# -- a whole life


def test_a_rank_says_everything_before_it_ends(host: Host) -> None:
    heard, code = _run(host, host.task(None))
    kinds = [message["type"] for message in heard]
    assert code == 0
    assert kinds.index("coordinator") < kinds.index("joined") < kinds.index("verdict") < kinds.index("result")
    assert kinds[-1] == "result" and "warm" not in kinds
    assert heard[-1]["metrics"]["num_devices"] == 1


def test_a_broken_installation_is_told_like_any_other_error(host: Host) -> None:
    heard, code = _run(host, host.task("raise ImportError('no jaxlib')"))
    assert (code, heard[-1]["type"]) == (1, "error")
    assert (heard[-1]["error"]["type"], heard[-1]["error"]["message"]) == ("ImportError", "no jaxlib")


def test_what_a_workload_raises_is_told_before_the_end(host: Host) -> None:
    heard, code = _run(host, host.task(None, {"size": "0"}))
    (error,) = [message["error"] for message in heard if message["type"] == "error"]
    assert code == 1
    assert (error["type"], error["message"]) == ("ConfigError", "size=0: must be at least 1")
    assert error["traceback"].startswith("Traceback") and error["traceback"].rstrip().endswith(error["message"])
    assert "ConfigError" in host.log.read_text()


HOARD = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2**30, resource.RLIM_INFINITY))
hoard = []
while True:
    hoard.append(b"x" * 2**24)
"""


def test_a_rank_that_runs_out_of_memory_says_how_much_it_had(host: Host) -> None:
    heard, code = _run(host, host.task(HOARD))
    error = heard[-1]["error"]
    assert (code, error["type"]) == (1, "MemoryError")
    assert 2**28 < error["memory"]["peak_bytes"] <= 2**30 < error["memory"]["host_bytes"]


def _run(host: Host, task: Message) -> tuple[list[Message], int]:
    """One whole attempt of one rank; returns what was heard and the exit code."""

    async def run() -> tuple[list[Message], int]:
        heard: list[Message] = []
        rank = await (await host.template()).fork()
        await rank.assign(task, heard.append, lambda: 0.0)
        code = (await rank.wait()).code
        return [message for message in heard if message["type"] != "progress"], code

    return host.run(run())
