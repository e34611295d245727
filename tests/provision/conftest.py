"""A fake Cloud TPU beside test hosts, and a client on a laptop from which no packet leaves their network."""

import ctypes
import dataclasses
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import COMMAND, ROOT, Cli
from tests.hosts.machines import TestHosts, claimed, missing
from tests.provision.credentials import write_service_account
from tests.provision.fake_tpu import FakeTpu, TpuServer
from tests.provision.host_machines import HostMachines

CLONE_NEWNET = 0x40000000


class LaptopCli(Cli):
    """Runs `spmd-launch` on the operator's machine of a set of test hosts.

    Args:
        hosts: the set.
        variables: of the environment there.
    """

    def __init__(self, hosts: TestHosts, variables: dict[str, str]):
        super().__init__(hosts.laptop.path("/root/.spmd-launch"))
        self._laptop = hosts.laptop
        self.environment = {"PYTHONPATH": str(ROOT), "COLUMNS": "80", **variables}

    def start(self, *args: str) -> subprocess.Popen[str]:
        argv = self._laptop.enter([sys.executable, *COMMAND[1:], *args], self.environment)
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@dataclasses.dataclass(frozen=True)
class Cloud:
    """A fake Cloud TPU with a client.

    Attributes:
        fake: what it does, and is told to do.
        machines: those that it hands out.
        endpoint: of its API.
        cli: of the client.
        hosts: which are its machines.
        secret: a line of the client's private key.
    """

    fake: FakeTpu
    machines: HostMachines
    endpoint: str
    cli: LaptopCli
    hosts: TestHosts
    secret: str

    def write(self, name: str, *lines: str, provider: str = "spot: true") -> str:
        """Writes a cluster file on the laptop; returns its path there."""
        path = f"/root/{name}.yaml"
        self.cli_path(path).write_text(
            f"name: {name}\nprovider:\n  type: gcp-tpu\n  project: test-project\n  zone: us-central2-b\n  user: root\n"
            f"  endpoint: '{self.endpoint}'\n  {provider}\naccelerator: tpu-v4-16\nemulate: true\n"
            f"python: {sys.executable}\nstorage_path: {self.hosts.bucket}\n" + "".join(f"{line}\n" for line in lines)
        )
        return path

    def cli_path(self, path: str) -> Path:
        return self.hosts.laptop.path(path)


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    if why := missing():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="slt-") as folder, claimed(("m1", "m2", "m3", "m4"), bucket=True) as hosts:
        machines = HostMachines(hosts)
        fake = FakeTpu(machines, waiting_s=1.0, provisioning_s=1.0)
        server = _serve_in(hosts, fake, Path(folder))
        secret = write_service_account(Path(folder) / "account.json")
        for file in ("roots.pem", "account.json"):
            hosts.laptop.path(f"/root/{file}").write_bytes((Path(folder) / file).read_bytes())
        variables = {
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": "/root/roots.pem",
            "GOOGLE_APPLICATION_CREDENTIALS": "/root/account.json",
        }
        try:
            yield Cloud(fake, machines, server.endpoint, LaptopCli(hosts, variables), hosts, secret)
        finally:
            server.close()


def _serve_in(hosts: TestHosts, fake: FakeTpu, folder: Path) -> TpuServer:
    """A server that listens in the hosts' network: a thread goes there, and what it binds stays there."""
    servers: list[TpuServer] = []

    def serve() -> None:
        namespace = os.open(hosts.switch_namespace(), os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)
        servers.append(TpuServer(fake, folder, hosts.gateway()))

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    [server] = servers
    return server
