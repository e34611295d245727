"""`jax.distributed.initialize` without a race: rank 0 listens first, then tells where; the others connect after that.

A rank that connects before the service listens loses about a second to a gRPC retry, and one that connects to a port
somebody else has taken never finds its peers.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping

import jax
import psutil

from launcher.rank.exit_codes import PortLostError
from launcher.rank.mutual_tls import mutual_tls_options

INITIALIZATION_TIMEOUT_S = 120
HEARTBEAT_TIMEOUT_S = 30
SHUTDOWN_TIMEOUT_S = 300
PUBLISH_TIMEOUT_S = 10


def serve(host_address: str, num_ranks: int, tls: Mapping[str, str], publish: Callable[[str], None]) -> None:
    """Rank 0: starts the coordination service, proves that it listens, publishes its address, and waits for all.

    Args:
        host_address: this host's address; the service binds it and no other.
        num_ranks: how many processes will connect, this one among them.
        tls: as in `join`.
        publish: called once, from another thread, as soon as the service listens.

    Raises:
        PortLostError: the service could not listen on the port that the kernel had chosen.
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
                if _listens(port):
                    published.set()
                    publish(address)
                    return
                time.sleep(0.005)

        watching = threading.Thread(target=watch, name="rendezvous", daemon=True)
        watching.start()
        try:
            join(address, num_ranks, 0, tls, bind_address=address)
        except RuntimeError as error:
            failed.set()
            if not published.is_set():
                raise PortLostError(f"the coordination service could not listen on {address}: {error}") from error
            raise
        watching.join(PUBLISH_TIMEOUT_S)  # a rank that is alone may have joined before the watcher has looked


def join(address: str, num_ranks: int, rank: int, tls: Mapping[str, str], bind_address: str | None = None) -> None:
    """Connects this process to the coordination service at `address`; returns when all ranks have.

    Args:
        address: of the service.
        num_ranks: how many processes connect.
        rank: of this one.
        tls: a `launcher.certificates.RankFiles` as JSON; a JAX without mutual TLS does without.
        bind_address: of rank 0, which serves.
    """
    jax.distributed.initialize(
        coordinator_address=address,
        num_processes=num_ranks,
        process_id=rank,
        local_device_ids=None,
        cluster_detection_method="deactivate",  # or JAX would fill in what it finds in the environment
        initialization_timeout=INITIALIZATION_TIMEOUT_S,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT_S,
        coordinator_bind_address=bind_address,
        **mutual_tls_options(tls),
    )


def _listens(port: int) -> bool:
    """Whether a socket of this very process listens on the port: seen in the kernel's table, without connecting."""
    return any(
        connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        for connection in psutil.Process().net_connections(kind="tcp")
    )
