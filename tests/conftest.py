"""One emulated cluster for the whole session, and the proof that nothing of any test survives it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.job import JobSpec
from launcher.job_folder import JobFolder

ROOT = Path(__file__).resolve().parent.parent
MARKER = "SPMD_LAUNCH_CLUSTER_ID"
# A shell that starts the tests in the background has them ignore SIGINT, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
COMMAND = [sys.executable, "-P", "-c", "from launcher.cli import main; main()"]


class Cli:
    """Runs `spmd-launch` as a user does, in a process of its own.

    Args:
        home: the state folder.
        cwd: where the user is.
        python: that it is installed in.
    """

    def __init__(self, home: Path, cwd: Path | None = None, python: str = sys.executable):
        self.home = home
        self.python = python
        self.cwd = cwd
        self.environment = {**os.environ, "SPMD_LAUNCH_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "80"}

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, *COMMAND[1:], *args], env=self.environment, cwd=self.cwd, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __call__(self, *args: str, code: int = 0, timeout_s: float = 240.0) -> str:
        """Runs a command; returns what it printed to both streams.

        Raises:
            AssertionError: another exit code than `code`.
        """
        process = self.start(*args)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
            raise AssertionError(f"{args} took more than {timeout_s} s\n{out}\n{err}") from None
        assert process.returncode == code, f"{args}: exit code {process.returncode}, not {code}\n{out}\n{err}"
        return out + err

    def json(self, *args: str, code: int = 0) -> Any:
        process = self.start(*args, "--json")
        out, err = process.communicate(timeout=240)
        assert process.returncode == code, f"{args}: exit code {process.returncode}, not {code}\n{out}\n{err}"
        return json.loads(out)

    def record(self, cluster: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.home / "clusters" / cluster / "cluster.json").read_text())
        return value

    def job(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.home / "jobs" / name / "job.json").read_text())
        return value

    def events(self, job: str, kind: str = "") -> list[dict[str, Any]]:
        """What is on record of a job, oldest first; only events of that type, if one is given."""
        folder = JobFolder(self.home / "jobs" / job)
        assert folder.exists(), f"there is no job {job!r}"
        return [event for event in folder.lines("events.jsonl") if kind in ("", event["type"])]

    def wait_for(self, what: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        """Waits until `what()` is true, and returns it.

        To look may be a command, which is a process that starts: what is waited for gets the core for as long.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            began = time.monotonic()
            if value := what():
                return value
            now = time.monotonic()
            assert now < deadline, f"still not after {timeout_s} s: {what}"
            time.sleep(max(0.1, now - began))


def lives(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def command_of(process: psutil.Process) -> list[str]:
    """The words of its command; none once it has ended, which it may at any moment."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def processes_of(record: dict[str, Any]) -> list[psutil.Process]:
    """Every process that carries the cluster's marker, or is of its session: Ray's wipe their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(MARKER) == record["cluster_id"]
            if marked or os.getsid(process.pid) == record["holder"]["pid"]:
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return [process for process in found if lives(process)]


def assert_nothing_left(record: dict[str, Any], home: Path) -> None:
    """No process, no port, no temporary folder of a cluster that is down."""
    left = processes_of(record)
    assert not left, [command_of(process) for process in left]
    assert not Path(record["run_folder"]).exists()
    assert not (home / "clusters" / record["spec"]["name"]).exists()
    port = int(record["gcs_address"].rpartition(":")[2])
    listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert port not in listening


def job_spec(name: str = "job", submitted: str = "2026-11-21T04:00:00.000+00:00") -> JobSpec:
    """What was asked for, of a job that nobody runs."""
    return JobSpec(
        name=name, job_id="b7", workload="psum-check", settings={}, config={}, num_hosts=2, code_digest="", files={},
        versions={}, submitted=submitted,
    )  # fmt: skip


@pytest.fixture
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own, for code that runs in this process."""
    monkeypatch.setenv("SPMD_LAUNCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[Any]]]:
    """A list for what a test starts: each process in it is ended after the test."""
    started: list[subprocess.Popen[Any]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def set_words(settings: Iterable[str]) -> list[str]:
    """`["--set", "steps=20"]` of `["steps=20"]`."""
    return [word for setting in settings for word in ("--set", setting)]


def cluster_file(folder: Path, name: str, num_hosts: int = 2, devices_per_host: int = 2) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\nprovider: {{type: local}}\nnum_hosts: {num_hosts}\naccelerator: cpu\n"
        f"devices_per_host: {devices_per_host}\nstorage_path: {folder}/storage\n"
    )
    return path


@pytest.fixture(scope="session")
def cli() -> Iterator[Cli]:
    """The command line with a state folder of its own; at the end, no trace of any cluster it made."""
    with tempfile.TemporaryDirectory(prefix="slt-") as folder:
        home = Path(folder)
        yield Cli(home)
        left = list((home / "clusters").iterdir()) if (home / "clusters").exists() else []
        assert not left, f"clusters left by tests: {left}"


@pytest.fixture(scope="session")
def cluster(cli: Cli) -> Iterator[str]:
    """Two emulated hosts x two devices, up for the whole session."""
    name = "shared"
    cli("up", str(cluster_file(cli.home, name)))
    record = cli.record(name)
    yield name
    cli("down", name, "--force")
    assert_nothing_left(record, cli.home)


@pytest.fixture(autouse=True)
def no_rank_survives(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each end-to-end test the shared cluster holds its standbys and nothing else of a job."""
    yield
    if "cluster" not in request.fixturenames:
        return
    cli, name = request.getfixturevalue("cli"), request.getfixturevalue("cluster")
    status = cli.json("status", name)
    assert all(host["job"] is None for host in status["hosts"]), status
    ranks = [p for p in processes_of(cli.record(name)) if "launcher.rank.template" in command_of(p)]
    assert len(ranks) <= len(status["hosts"]), [command_of(p) for p in ranks]


def data_folder() -> Path:
    """Real inputs that are not part of the project; tests that need them skip in words where they are absent."""
    return Path(os.environ.get("SPMD_LAUNCH_TEST_DATA", ROOT.parent / "shared" / "data"))
