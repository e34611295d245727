"""What processes of this machine listen on: read from the kernel's tables, as far as this user may look."""

import dataclasses
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from cluster.processes import ProcessId

UNIX_TABLE = Path("/proc/net/unix")
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_PORT_RANGE = (32768, 60999)
ACCEPTS = 0x10000  # the flag of a Unix socket that listens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listening:
    """A socket that waits for others.

    Attributes:
        protocol: `tcp`, `udp` or `unix`.
        address: that it is bound to; of a Unix socket its path, or `@` and its name if it has no file.
        port: 0 for a Unix socket.
        pid: of the process that has it.
        command: what that process calls itself, word by word.
        private: of a Unix socket: file permissions keep other users out.
    """

    protocol: str
    address: str
    port: int
    pid: int
    command: tuple[str, ...]
    private: bool = False

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Listening":
        return cls(**{**value, "command": tuple(value["command"])})


def listening(processes: Iterable[ProcessId]) -> list[Listening]:
    """All sockets on which these processes wait, in the order of protocol and port."""
    found = set()
    for identity in processes:
        try:
            process = psutil.Process(identity.pid)
            command = tuple(process.cmdline())
            found |= {Listening(pid=identity.pid, command=command, **place) for place in _places(process)}
        except psutil.Error:
            continue  # ended meanwhile
    return sorted(found, key=lambda one: (one.protocol, one.port, one.address, one.pid))


def _places(process: psutil.Process) -> Iterator[dict[str, Any]]:
    for connection in process.net_connections("inet"):
        address = connection.laddr
        waits = connection.status == psutil.CONN_LISTEN or (connection.type == socket.SOCK_DGRAM and address)
        if waits and not connection.raddr:
            protocol = "udp" if connection.type == socket.SOCK_DGRAM else "tcp"
            plain = address.ip.removeprefix("::ffff:")  # an IPv4 address, as IPv6 writes it
            yield {"protocol": protocol, "address": plain, "port": address.port}
    accepting = _accepting_paths()
    for path in {str(connection.laddr) for connection in process.net_connections("unix")}:
        if path and (accepting is None or path in accepting):
            yield {"protocol": "unix", "address": path, "port": 0, "private": is_private(path)}


def _accepting_paths() -> set[str] | None:
    """Paths of Unix sockets that listen; None where the kernel does not say."""
    if not UNIX_TABLE.exists():
        return None
    fields = [line.split(None, 7) for line in UNIX_TABLE.read_text(errors="replace").splitlines()[1:]]
    return {words[7] for words in fields if len(words) == 8 and int(words[3], 16) & ACCEPTS}


def is_private(path: str) -> bool:
    """Whether file permissions keep other users than its owner from connecting to a Unix socket."""
    if path.startswith("@"):
        return False  # a name has no permissions
    place = Path(path)
    try:
        closed = any(not folder.stat().st_mode & 0o011 for folder in place.parents)
        return closed or not place.lstat().st_mode & 0o022
    except OSError:
        return False


def port_range() -> tuple[int, int]:
    """First and last port that this machine's kernel gives to whoever asks for any."""
    try:
        low, high = PORT_RANGE.read_text().split()
    except OSError:
        return USUAL_PORT_RANGE
    return int(low), int(high)


def machine_id() -> str:
    """The same for all processes that share this machine's network, and no other's."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return socket.gethostname()
    return f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/net')}"
