"""Sets of test hosts on one machine: what the ssh provider is tested on, and what a person may try it on.

Each host has its own network, PID, mount, IPC and UTS namespace: own address, host name, process table, /dev/shm, /tmp,
and a disk of its own over the machine's root, which it sees and cannot change. HOME is an empty /root: nothing of the
machine's user is there. Python environments are at the same paths as on the machine. A real sshd takes root with the
set's key. Beside the cluster's hosts stands a machine `laptop`, the operator's: no sshd, reachable by nobody, with the
set's key and the project. No packet leaves the set. A set is named by a number, so that several stand side by side.

What they are not: memory and cores are shared and not bounded; a power cut loses nothing that was written, synced or
not; root on a host is no prisoner (these are tests, not a sandbox).
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.hosts.commands import NAMESPACES, PATH, command
from tests.hosts.disk import environments, to_share, unmount_all_under
from tests.hosts.host import Host
from tests.hosts.network import Network

ROOT = Path(__file__).resolve().parents[2]
STATE = Path("/run/spmd-launch-hosts")
NAMES = ("h1", "h2", "h3")
LAPTOP = "laptop"
CLAIMED = range(200, 240)  # sets of processes that hold them while they live; lower numbers are for people


class TestHosts:
    """A set of hosts and the operator's laptop.

    Args:
        names: of the cluster's hosts.
        number: of the set, 0 to 254; two sets with one number are the same set.
        disk_mib: size of each host's disk; memory is used only for what is written.
        from_machine: the machine itself reaches the hosts too (a link and a route, until `down`).
        bucket: all hosts and the laptop share a folder that they may write, as they would a bucket of a cloud.

    Attributes:
        hosts: the cluster's hosts by name, in order.
        laptop: the operator's machine.
        state: folder of keys, `ssh_config` and disks.
        identity: the private key that lets in; at the same path on the laptop.
        bucket: the shared folder, at this path everywhere; None: there is none.
    """

    __test__ = False  # pytest: not a class of tests

    def __init__(
        self, names: Sequence[str] = NAMES, number: int = 0, *, disk_mib: int = 4096, from_machine: bool = False,
        bucket: bool = False,
    ):  # fmt: skip
        self.names, self.number = tuple(names), number
        self.state = STATE / str(number)
        self.identity = self.state / "id"
        self.ssh_config = self.state / "ssh_config"
        self.bucket = self.state / "bucket" if bucket else None
        self._network = Network(number)
        self._from_machine = from_machine
        everywhere = environments()

        def host(name: str, index: int, *more: Path) -> Host:
            share = to_share([*everywhere, *more])
            return Host(self._network, name, index, self.state / name, disk_mib, share, self.bucket)

        self.hosts = {name: host(name, 10 + i) for i, name in enumerate(self.names)}
        self.laptop = host(LAPTOP, 2, ROOT)

    @classmethod
    def existing(cls, number: int) -> "TestHosts":
        """A set that another process has brought up.

        Raises:
            FileNotFoundError: there is none.
        """
        return cls(json.loads((STATE / str(number) / "names.json").read_text()), number)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def machines(self) -> list[Host]:
        return [*self.hosts.values(), self.laptop]

    def up(self) -> None:
        """Makes and boots all of them, side by side; what an earlier run of this number left is removed first."""
        self.down()
        try:
            self._make()
        except BaseException:
            self.down()
            raise

    def _make(self) -> None:
        self.state.mkdir(0o700, parents=True)
        if self.bucket is not None:
            self.bucket.mkdir()
        (self.state / "names.json").write_text(json.dumps(self.names))
        self._make_access()
        self._network.up()
        addresses = {host.name: host.address for host in self.machines()}
        key = self.identity.with_suffix(".pub").read_text()
        for host in self.machines():
            host.disk.make(host.name, addresses, None if host is self.laptop else key)
            host.start()
        for host in self.machines():
            host.wait_ready()
        self._prepare_laptop()
        if self._from_machine:
            self._network.let_machine_in()

    def down(self) -> None:
        """Removes everything: processes, namespaces, cables, mounts, files. Nothing to remove is fine too."""
        self._network.down()
        unmount_all_under(self.state)
        shutil.rmtree(self.state, ignore_errors=not self.state.exists())
        with suppress(OSError):  # other sets are there, or nothing is
            STATE.rmdir()

    def switch_namespace(self) -> Path:
        """Of the network between the hosts, where what serves them may listen."""
        return NAMESPACES / self._network.switch

    def gateway(self) -> str:
        """The address in that namespace."""
        return self._network.address(1)

    def renew(self, name: str, authorized_key: str) -> None:
        """Gives a host that is off an empty disk, and who may come in: another machine under its address."""
        host = self.hosts[name]
        unmount_all_under(host.disk.folder)
        shutil.rmtree(host.disk.folder, ignore_errors=True)
        host.disk.make(name, {machine.name: machine.address for machine in self.machines()}, authorized_key)

    def in_operator(self, argv: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
        """Runs a command on the laptop, in the project's folder; options as for `Host.run`."""
        return self.laptop.run(argv, **{"cwd": str(ROOT), **options})  # type: ignore[arg-type]

    def ssh(self, name: str, *words: str) -> list[str]:
        """The command that runs `words` on a host by ssh: for the laptop, and for the machine with `from_machine`."""
        return ["ssh", "-F", str(self.ssh_config), name, *words]

    def write_lab(
        self, path: Path, devices_per_host: int = 2, min_hosts: int = 2, names: Sequence[str] | None = None
    ) -> None:
        """Writes a cluster file of the ssh provider for these hosts; the identity's path holds on the laptop too.

        Args:
            path: of the file.
            devices_per_host, min_hosts: as there.
            names: of the members; None: all.
        """
        addresses = ", ".join(self[name].address for name in names or self.names)
        path.write_text(
            f"name: lab\nprovider:\n  type: ssh\n  hosts: [{addresses}]\n  user: root\n"
            f"  identity_file: {self.identity}\naccelerator: cpu\ndevices_per_host: {devices_per_host}\n"
            f"min_hosts: {min_hosts}\npython: {sys.executable}\n"
        )

    def restore(self) -> None:
        """All hosts on, healed and as configured, whatever a test did to them; what runs in them goes on."""
        if not self.laptop.is_on():
            self.laptop.boot()
            self._prepare_laptop()
        for host in self.machines():
            host.restore()

    def _make_access(self) -> None:
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"set {self.number}", "-f", str(self.identity))
        common = (
            f"  User root\n  IdentityFile {self.identity}\n  IdentitiesOnly yes\n  BatchMode yes\n"
            f"  UserKnownHostsFile {self.state}/known_hosts\n  StrictHostKeyChecking accept-new\n  ConnectTimeout 5\n"
        )
        self.ssh_config.write_text(
            "".join(f"Host {host.name}\n  HostName {host.address}\n{common}" for host in self.hosts.values())
        )

    def _prepare_laptop(self) -> None:
        """The access at the same paths, and a firewall: as in an office, nobody can call it."""
        folder = self.laptop.path(self.state)
        folder.mkdir(parents=True, exist_ok=True)  # the bucket is in it
        folder.chmod(0o700)
        for file in (self.identity, self.identity.with_suffix(".pub"), self.ssh_config):
            shutil.copy2(file, folder)
        for rule in (
            "-A INPUT -i lo -j ACCEPT",
            "-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            "-P INPUT DROP",
        ):
            self._network.iptables(self.laptop.namespace, rule)


def hold(number: int) -> socket.socket | None:
    """Claims a number until what is returned is closed; None where another process has it.

    The claim is a socket's name, which the kernel takes back whenever and however this process ends.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0spmd-launch-hosts-{number}")
    except OSError:
        claim.close()
        return None
    return claim


@contextmanager
def claimed(
    names: Sequence[str] = NAMES, *, from_machine: bool = False, bucket: bool = False, numbers: Sequence[int] = CLAIMED
) -> Iterator[TestHosts]:
    """A set with a number that no other living process holds, up; down at the end.

    What killed processes left under any of `numbers` is removed first.

    Raises:
        RuntimeError: every number is held.
    """
    with ExitStack() as stack:
        free = []
        for number in numbers:
            if claim := hold(number):
                with claim:
                    TestHosts(number=number).down()
                free.append(number)
        for number in free:
            if claim := hold(number):
                stack.enter_context(claim)
                hosts = TestHosts(names, number, from_machine=from_machine, bucket=bucket)
                stack.callback(hosts.down)
                hosts.up()
                yield hosts
                return
        raise RuntimeError(f"all sets of test hosts from {numbers[0]} to {numbers[-1]} are in use")


def missing() -> str | None:
    """Why this machine cannot have test hosts, in words; None where it can."""
    if os.geteuid() != 0:
        return "test hosts need root"
    wanted = {"sshd": "openssh-server", "iptables": "iptables", "ip": "iproute2", "ssh": "openssh-client"}
    absent = [package for program, package in wanted.items() if shutil.which(program, path=PATH) is None]
    if absent:
        return f"test hosts need packages that are not installed: {' '.join(absent)}"
    rule = "iptables -A INPUT -m statistic --mode random --probability 0.5 -j DROP"
    try:
        command("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "sh", "-c", rule)
    except RuntimeError as error:
        return f"this machine allows no namespaces with a firewall of their own: {error}"
    return None
