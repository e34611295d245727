"""`up` over ssh, beside `ray start` over ssh on the same test hosts: from the prompt to the last host.

The hosts are namespaces of this machine with an sshd each (`tests/hosts`), with an environment that is there already.
The peer is what its documentation tells a person to do: `ray start` on one host after another, with explicit addresses.
Ours also starts agents, counts devices and compares the hosts.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ours import Installation

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))
from tests.hosts.machines import TestHosts, claimed, missing  # noqa: E402

PORT = 6379
RAY_START = ["--num-cpus=2", "--object-store-memory=134217728", "--disable-usage-stats", "--include-dashboard=false"]


class NoTestHosts(Exception):  # a reason, not an error
    """Why this machine cannot have test hosts."""


@contextmanager
def hosts_of(number: int) -> Iterator[TestHosts]:
    """That many test hosts which this machine reaches.

    Raises:
        NoTestHosts: in words.
    """
    if why := missing():
        raise NoTestHosts(why)
    with claimed([f"h{k}" for k in range(1, number + 1)], from_machine=True) as hosts:
        yield hosts


def ours_up_s(hosts: TestHosts, installation: Installation) -> float:
    """Seconds of `spmd-launch up`, which is taken down again; nothing of it is left on a host.

    Raises:
        RuntimeError: a process is left.
    """
    file = installation.folder / "lab.yaml"
    hosts.write_lab(file)
    # Each set of hosts has fresh keys, at addresses that an earlier set had.
    (installation.home / "known_hosts/lab").unlink(missing_ok=True)
    seconds, _ = installation.command("up", str(file))
    installation.command("down", "lab")
    if left := [process for host in hosts.hosts.values() for process in host.processes()]:
        raise RuntimeError(f"left on the hosts: {left}")
    return seconds


def ray_start_s(hosts: TestHosts) -> float:
    """Seconds of `ray start` on one host after another; all is stopped again."""
    ray = str(Path(sys.executable).with_name("ray"))
    head, *others = hosts.hosts.values()
    start = time.monotonic()
    try:
        _ssh(
            hosts, head.name, ray, "start", "--head", f"--node-ip-address={head.address}", f"--port={PORT}", *RAY_START
        )
        for host in others:
            address = f"--address={head.address}:{PORT}"
            _ssh(hosts, host.name, ray, "start", address, f"--node-ip-address={host.address}", *RAY_START[:3])
        return time.monotonic() - start
    finally:
        for host in hosts.hosts.values():  # its `ray stop` sees the processes of its own host alone
            _ssh(hosts, host.name, ray, "stop", "--force")


def _ssh(hosts: TestHosts, name: str, *words: str) -> None:
    done = subprocess.run(
        hosts.ssh(name, *words), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
