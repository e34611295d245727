"""`up` and `down` killed at each of their steps, one after the other: `up` goes on, and `down` leaves nothing."""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.record import short_folder
from tests.provision import kill_programs
from tests.provision.credentials import write_service_account
from tests.provision.fake_tpu import FakeTpu, NoMachines, TpuServer

pytestmark = [pytest.mark.provision, pytest.mark.timeout(600)]

SECONDS = 30.0
HOSTS_REACHED = "waiting for sshd"


class Client:
    """One who is killed again and again.

    Args:
        folder: for the state folder, and what the client is told.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.server = TpuServer(FakeTpu(NoMachines()), folder)
        write_service_account(folder / "account.json")
        self.environment = {
            "SPMD_LAUNCH_HOME": str(folder / "home"),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self.server.roots),
            "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "account.json"),
        }
        self.said = folder / "said"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.provision.kill_programs", "cluster.gcp_tpu_provider"])

    def begin_anew(self) -> FakeTpu:
        """An empty cloud."""
        self.server.fake = FakeTpu(NoMachines(), waiting_s=0.05, provisioning_s=0.05, deleting_s=0.05)
        self.file = self.folder / "pod.yaml"
        self.file.write_text(
            "name: pod\nprovider:\n  type: gcp-tpu\n  project: test-project\n  zone: us-central2-b\n"
            f"  endpoint: '{self.server.endpoint}'\naccelerator: tpu-v4-16\nemulate: true\nnum_slices: 2\n"
            f"storage_path: {self.folder}/bucket\n"
        )
        return self.server.fake

    def up(self) -> Any:
        self.said.unlink(missing_ok=True)
        return self._start(kill_programs.up, str(self.file), str(self.said), self.environment)

    def down(self) -> Any:
        return self._start(kill_programs.down, "pod", self.environment)

    def _start(self, function: Callable[..., None], *words: Any) -> Any:
        process = self._context.Process(target=function, args=words)
        process.start()
        return process

    def reaches_hosts(self, process: Any) -> bool:
        """Whether `up` has come to machines, which nobody is behind; or else has not yet ended."""
        assert process.is_alive(), self.said.read_text() if self.said.exists() else "it has said nothing"
        return self.said.exists() and HOSTS_REACHED in self.said.read_text()

    def go_on_to_hosts(self) -> None:
        """`up`, until all that it has to do with the cloud is done; then it is killed."""
        process = self.up()
        deadline = time.monotonic() + SECONDS
        while not self.reaches_hosts(process):
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.01)
        kill(process)

    def go_down(self) -> None:
        """`down`, to its end, of which nothing is left here or there."""
        if (self.folder / "home" / "clusters" / "pod").exists():
            process = self.down()
            process.join(SECONDS)
            assert process.exitcode == 0
        assert self.server.fake.there() == {}
        assert not (self.folder / "home" / "clusters" / "pod").exists()
        assert not Path(short_folder(f"links {(self.folder / 'home').resolve()} pod")).exists()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    pytest.importorskip("google.cloud.tpu_v2", reason="the extra gcp is not installed")
    with tempfile.TemporaryDirectory(prefix="slt-") as folder:
        client = Client(Path(folder))
        yield client
        client.server.close()


def kill(process: Any) -> None:
    process.kill()
    process.join(SECONDS)
    assert process.exitcode == -9


def kill_after(client: Client, fake: FakeTpu, begin: Callable[[], Any], calls: int) -> bool:
    """Kills it when so many calls are carried out and the last is not answered, which is before the next, too.

    Returns:
        False if it makes fewer, and is where nothing is asked any more.
    """
    fake.stop_at(max(calls - 1, 0), "after" if calls else "before")
    process = begin()
    deadline = time.monotonic() + SECONDS
    while not (stopped := fake.stopped(0.02)):
        if process.exitcode == 0 or (begin == client.up and client.reaches_hosts(process)):
            break
        assert time.monotonic() < deadline
    if process.exitcode is None:
        kill(process)
    fake.go_on()
    return stopped


def preempted(client: Client, fake: FakeTpu) -> None:
    client.go_on_to_hosts()
    fake.preempt("pod-0")


@pytest.mark.parametrize("prepare", [lambda client, fake: None, preempted], ids=["fresh", "preempted"])
def test_up_killed_at_each_call_goes_on_and_down_leaves_nothing(
    client: Client, prepare: Callable[[Client, FakeTpu], None]
) -> None:
    steps = 0
    while True:
        fake = client.begin_anew()
        prepare(client, fake)
        came = kill_after(client, fake, client.up, steps)
        if steps % 2:  # half of them go on first, half are undone where they are
            made_before = made(fake)
            client.go_on_to_hosts()
            assert sum(state == "ACTIVE" for state in fake.there().values()) == 2
            assert made(fake) >= made_before
        client.go_down()
        if not came:
            break
        steps += 1
    assert steps >= 10, "calls: two lists to find it, two to look, two to create, and those that wait"


def made(fake: FakeTpu) -> int:
    return sum(method == "CreateQueuedResource" for method, _ in fake.calls)


def test_down_killed_at_each_call_is_ended_by_the_next(client: Client) -> None:
    steps = 0
    while True:
        fake = client.begin_anew()
        client.go_on_to_hosts()
        came = kill_after(client, fake, client.down, steps)
        client.go_down()
        if not came:
            break
        steps += 1
    assert steps >= 6, "calls: two lists, two to delete, and four lists that show nothing"
