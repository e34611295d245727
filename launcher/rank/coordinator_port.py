"""The port of JAX's coordination service: held until the service listens on it, and told only after that."""

import contextlib
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PERIOD_S = 0.005
PUBLISH_TIMEOUT_S = 10.0
LISTENS = "0A"  # the kernel's number for the state of such a socket


class PortLostError(RuntimeError):
    """Another process took the port between its choice and its use; a new attempt takes a new one."""

    def event(self) -> dict[str, Any]:
        """What this rank tells of it; no exit code says it, for each of them may be a user's own."""
        return {"type": "port-lost", "why": str(self)}


@contextlib.contextmanager
def announced(host_address: str, publish: Callable[[str], None]) -> Iterator[str]:
    """Yields the address that the service is to bind; what is inside starts the service and waits for all ranks.

    Args:
        host_address: this host's address.
        publish: called once, from another thread, with the address, as soon as a socket of this process listens there.

    Raises:
        PortLostError: another process has the port that the kernel had chosen.
    """
    # Bound but not listening, with SO_REUSEPORT as gRPC does: nobody else is given the port while the service starts.
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reservation.bind((host_address, 0))
        port = reservation.getsockname()[1]
        address = f"{host_address}:{port}"
        published = threading.Event()
        failed = threading.Event()

        def watch() -> None:
            while not failed.is_set():
                if listens(port):
                    published.set()
                    publish(address)
                    return
                time.sleep(PERIOD_S)

        watching = threading.Thread(target=watch, name="rendezvous", daemon=True)
        watching.start()
        try:
            yield address
        except RuntimeError as error:
            failed.set()
            reservation.close()
            if not published.is_set() and not listens(port) and _is_taken(host_address, port):
                raise PortLostError(f"the coordination service could not listen on {address}: {error}") from error
            raise
        watching.join(PUBLISH_TIMEOUT_S)  # a rank that is alone may have joined before the watcher has looked


def _is_taken(host_address: str, port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind((host_address, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def listens(port: int) -> bool:
    """Whether a socket of this very process listens on the port: seen in the kernel's table, without connecting."""
    if sys.platform != "linux":
        import psutil  # here: a user's environment need not have it where the kernel's own table can be read

        return any(
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            for connection in psutil.Process().net_connections(kind="tcp")
        )
    return any(f"socket:[{inode}]" in _own_sockets() for inode in _listening(port))


def _listening(port: int) -> list[str]:
    """Inodes of the sockets of this network that listen on a port."""
    rows = [row.split() for table in ("tcp", "tcp6") for row in _lines(Path("/proc/self/net") / table)]
    return [row[9] for row in rows if row[3] == LISTENS and int(row[1].rpartition(":")[2], 16) == port]


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text().splitlines()[1:]
    except OSError:  # a kernel without IPv6
        return []


def _own_sockets() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found
