"""A fake Cloud TPU beside test hosts, and a client on a laptop from which no packet leaves their network."""

import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import COMMAND, ROOT, Cli
from tests.hosts.machines import TestHosts, claimed, missing
from tests.hosts.network import within
from tests.metadata_server import Cloud as Metadata
from tests.provision.credentials import write_service_account
from tests.provision.fake_tpu import FakeTpu, TpuServer
from tests.provision.host_machines import HostMachines
from tests.provision.link_local import MachineImage, google_metadata


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
        metadata: what these find at 169.254.169.254.
        secret: a line of the client's private key.
    """

    fake: FakeTpu
    machines: HostMachines
    endpoint: str
    cli: LaptopCli
    hosts: TestHosts
    metadata: Metadata
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
    with (
        tempfile.TemporaryDirectory(prefix="slt-") as folder,
        claimed(("m1", "m2", "m3", "m4"), bucket=True) as hosts,
        google_metadata(hosts) as metadata,
    ):
        roots, account = Path(folder) / "roots.pem", Path(folder) / "account.json"
        machines = HostMachines(hosts)
        fake = FakeTpu(machines, waiting_s=1.0, provisioning_s=1.0)
        server = within(hosts.switch_namespace(), lambda: TpuServer(fake, Path(folder), hosts.gateway()))
        trust = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": "/etc/roots.pem"}
        machines.image = MachineImage(trust, {"etc/roots.pem": roots.read_bytes()})
        hosts.laptop.path("/etc/roots.pem").write_bytes(roots.read_bytes())
        secret = write_service_account(account)
        hosts.laptop.path("/root/account.json").write_bytes(account.read_bytes())
        cli = LaptopCli(hosts, {**trust, "GOOGLE_APPLICATION_CREDENTIALS": "/root/account.json"})
        try:
            yield Cloud(fake, machines, server.endpoint, cli, hosts, metadata, secret)
        finally:
            server.close()
