"""Three hosts and a laptop for the whole session, mended after each test that has used them."""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.hosts.machines import TestHosts, claimed, missing


@pytest.fixture(scope="session")
def hosts() -> Iterator[TestHosts]:
    """Hosts h1, h2 and h3 in a set of their own; the test machine reaches them too."""
    if why := missing():
        pytest.skip(why)
    with claimed(from_machine=True) as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def mended(request: pytest.FixtureRequest) -> Iterator[None]:
    """The next test finds every host on, connected and as configured."""
    yield
    if "hosts" in request.fixturenames:
        request.getfixturevalue("hosts").restore()


BEFORE_UP = "/run/before-up"  # a file on each host, as old as its cluster


@dataclasses.dataclass(frozen=True)
class Lab:
    """A cluster of test hosts over ssh.

    Attributes:
        cli: of a client that is none of the hosts.
        hosts: the machines.
        file: the cluster file; the cluster's name is `lab`.
    """

    cli: Cli
    hosts: TestHosts
    file: Path
    name: str = "lab"

    def processes(self) -> list[str]:
        """What runs on the hosts besides their sshd."""
        return [f"{name}: {process}" for name, host in self.hosts.hosts.items() for process in host.processes()]

    def folders(self) -> list[str]:
        """What there is of ours on the hosts' disks, but for jobs and environments, which stay."""
        command = ["sh", "-c", "ls -d /root/.spmd-launch/hosts/*/clusters/* /tmp/spl-* 2>/dev/null || true"]
        found = [(name, host.run(command).stdout.split()) for name, host in self.hosts.hosts.items()]
        return [f"{name}: {path}" for name, paths in found for path in paths]

    def purge(self) -> None:
        """Takes away what `down` leaves, for the next test to find none."""
        for host in self.hosts.hosts.values():
            host.run(["rm", "-rf", "/root/.spmd-launch"])


@pytest.fixture(scope="module")
def empty_lab(hosts: TestHosts) -> Iterator[Lab]:
    """Hosts and a cluster file for them, with nothing up."""
    with tempfile.TemporaryDirectory(prefix="slt-") as folder:
        file = Path(folder) / "lab.yaml"
        hosts.write_lab(file)
        yield Lab(Cli(Path(folder)), hosts, file)


@pytest.fixture(scope="module")
def lab(empty_lab: Lab) -> Iterator[Lab]:
    """A cluster of three hosts that is up; nothing of it is left on any of them afterwards."""
    for host in empty_lab.hosts.hosts.values():
        host.run(["touch", BEFORE_UP])
    empty_lab.cli("up", str(empty_lab.file))
    yield empty_lab
    empty_lab.cli("down", empty_lab.name, "--force")
    assert not empty_lab.processes()
    empty_lab.purge()
