"""A Ray that somebody has started by hand and that goes on: two nodes, an actor of theirs, and our cluster on it."""

import os
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cluster.processes import MARKER
from tests.conftest import ROOT, Cli, command_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]
START_TIMEOUT_S = 120.0

STRANGER = textwrap.dedent("""
    import os, sys
    import ray
    address, what, name, node = sys.argv[1:]
    ray.init(address=address, namespace="stranger", log_to_driver=False, logging_level="error")
    class Keeper:
        def __init__(self):
            self.count = 0
        def visit(self):
            self.count += 1
            return os.getpid(), self.count
    if what == "start":
        ray.remote(Keeper).options(name=name, lifetime="detached", num_cpus=1, resources={node: 0.01}).remote()
    keeper = ray.get_actor(name)
    if what == "end":
        ray.kill(keeper)
    else:
        print(*ray.get(keeper.visit.remote()))
""")


class TheirRay:
    """Two nodes on this machine, started as a person starts them.

    Args:
        folder: for all that it writes; also its users' home.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        self.environment |= {"HOME": str(folder), "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        self.environment.pop("PYTHONPATH", None)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self._start("--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=3",
                    "--include-dashboard=false", '--resources={"first": 1}', f"--temp-dir={folder}/first")  # fmt: skip
        self._start(f"--address={self.address}", "--node-ip-address=127.0.0.1", "--num-cpus=2",
                    '--resources={"second": 1}', f"--temp-dir={folder}/second")  # fmt: skip

    def _start(self, *arguments: str) -> None:
        command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", *arguments]
        ports = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        done = subprocess.run([*command, *ports, f"--object-store-memory={80 * 2**20}"], env=self.environment,
                              capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def stranger(self, what: str, name: str, node: str) -> list[int]:
        """Starts, visits or ends an actor of somebody else; its pid, and how often it has been visited."""
        done = subprocess.run([sys.executable, "-c", STRANGER, self.address, what, name, node], env=self.environment,
                              capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return [int(word) for word in done.stdout.split()]

    def own_processes(self) -> set[psutil.Process]:
        """Those that `ray start` has started: not its workers."""
        found = set()
        for process in psutil.process_iter():
            words = command_of(process)[1:]
            # A worker that starts has not its title yet; the raylet has the worker's command in an option.
            is_worker = any("default_worker.py" in word and not word.startswith("--") for word in words)
            if any(str(self.folder) in word for word in words) and not is_worker and process.pid != os.getpid():
                found.add(process)
        return found

    def stop(self) -> None:
        processes = self.own_processes()
        everything = set(processes)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                everything |= set(process.children(recursive=True))
        for process in everything:
            with suppress(psutil.NoSuchProcess):  # it has ended with another
                process.kill()
        psutil.wait_procs(everything, timeout=20.0)


@pytest.fixture(scope="module")
def theirs() -> Iterator[TheirRay]:
    with tempfile.TemporaryDirectory(prefix="slt-", ignore_cleanup_errors=True) as folder:
        ray = None
        try:
            ray = TheirRay(Path(folder))
            yield ray
        finally:
            if ray is not None:
                ray.stop()


def example(cli: Cli, theirs: TheirRay, *, name: str = "shared") -> str:
    text = (ROOT / "examples/existing-ray.yaml").read_text()
    text = text.replace("127.0.0.1:6379", theirs.address)
    path = cli.home / f"existing-{name}.yaml"
    path.write_text(text.replace("name: shared", f"name: {name}"))
    return str(path)


def test_nothing_is_begun_where_a_ray_cannot_be_joined(cli: Cli, theirs: TheirRay) -> None:
    file = Path(example(cli, theirs))
    good = file.read_text()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        port = silent.getsockname()[1]
        file.write_text(good.replace(theirs.address, f"127.0.0.1:{port}"))
        assert f"no Ray can be reached at 127.0.0.1:{port}" in cli("up", str(file), code=1)
    file.write_text(good)
    without_token = Cli(cli.home)
    without_token.environment |= {"RAY_AUTH_MODE": "token", "HOME": str(cli.home)}
    assert "no token is given" in without_token("up", str(file), code=1)
    assert not (cli.home / "clusters" / "shared").exists()
    assert not (theirs.folder / ".spmd-launch").exists()


@pytest.mark.long
def test_a_node_that_others_hold_is_named_with_who_holds_it(cli: Cli, theirs: TheirRay) -> None:
    for name in ("one", "two"):
        theirs.stranger("start", name, "second")
    try:
        out = " ".join(cli("up", example(cli, theirs), code=1).split())
        assert "2 node(s) are wanted as hosts, 1 of 2 can be one now" in out
        assert "0 of 2 CPU(s) free, 1 needed; held by" in out
        assert "actor Keeper 'one'" in out and "namespace stranger" in out
    finally:
        for name in ("one", "two"):
            theirs.stranger("end", name, "second")


def test_up_submit_down_on_a_ray_that_goes_on(cli: Cli, theirs: TheirRay) -> None:
    keeper, _ = theirs.stranger("start", "keeper", "second")
    before = theirs.own_processes()
    planned = cli.json("up", example(cli, theirs), "--dry-run")["actions"]
    assert not (theirs.folder / ".spmd-launch").exists() and not (cli.home / "clusters/shared").exists()
    cli("up", example(cli, theirs))
    record = cli.record("shared")
    names = [host["name"] for host in record["hosts"]]
    assert [(action["verb"], action["name"]) for action in planned] == [("start", name) for name in names]
    ends = cli.json("down", "shared", "--dry-run")["actions"]
    assert [(action["verb"], action["name"]) for action in ends] == [("end", name) for name in names]
    assert len(names) == len({host["node_id"] for host in record["hosts"]}) == 2
    assert all(host["folder"].startswith(f"{theirs.folder}/.spmd-launch/hosts/") for host in record["hosts"])
    try:
        assert "is up already" in cli("up", example(cli, theirs))
        with tempfile.TemporaryDirectory(prefix="slt-") as folder:
            other = Cli(Path(folder))
            assert "'shared' on this Ray already" in other("up", example(cli, theirs), code=1)
        cli("submit", "transformer", "--cluster", "shared", "--name", "on-theirs", "--set", "steps=10")
        assert [rank["host"] for rank in cli.job("on-theirs")["ranks"]] == names
        agents = [p for p in children_of_raylets(theirs) if "ray::Agent" in "".join(command_of(p)[:1])]
        assert len(agents) == 2
        agents[1].kill()  # Ray starts it again, with our code
        cli.wait_for(lambda: "LOST" not in cli.json("status", "shared")["state"], 60.0)
        cli("submit", "psum-check", "--cluster", "shared", "--name", "after-restart")
    finally:
        out = cli("down", "shared", "--force")
    assert "detached; the Ray at" in out
    assert theirs.stranger("visit", "keeper", "second") == [keeper, 2]
    assert before <= theirs.own_processes()
    assert not [p for p in children_of_raylets(theirs) if command_of(p)[:1] in (["ray::Agent"], ["ray::Supervisor"])]
    assert not marked(record)
    assert not Path(record["run_folder"]).exists()
    assert not (theirs.folder / ".spmd-launch").exists()
    theirs.stranger("end", "keeper", "second")


@pytest.mark.long
def test_down_after_their_ray_has_ended(cli: Cli, theirs: TheirRay) -> None:
    """The last one: it ends the Ray that the others use."""
    cli("up", example(cli, theirs, name="orphan"))
    record = cli.record("orphan")
    theirs.stop()
    cli.wait_for(lambda: cli.json("status", "orphan")["state"] == "DEAD", 30.0)
    second = record["hosts"][1]
    out = " ".join(cli("down", "orphan").split())
    assert f"{second['name']}: its Ray has ended, so it cannot be reached" in out
    assert not marked(record)
    assert not Path(record["run_folder"]).exists() and not (cli.home / "clusters" / "orphan").exists()
    assert not Path(record["hosts"][0]["folder"]).exists()


def children_of_raylets(theirs: TheirRay) -> list[psutil.Process]:
    children = []
    for process in theirs.own_processes():
        with suppress(psutil.NoSuchProcess):
            if process.name() == "raylet":
                children += [child for child in process.children() if command_of(child)]
    return sorted(children, key=lambda process: process.pid)


def marked(record: dict[str, object]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER) == record["cluster_id"]:
                found.append(process)
        except psutil.Error:
            continue
    return found
