"""A stranger on the network: `python attackers.py KIND`, a process of its own that reads targets from its input.

It says `ready`, then answers each line, `ADDRESS` or `ADDRESS FOLDER` (of key and certificates that it has come by),
with one line. JAX's own client may end it by an abort where it is refused.
"""

import socket
import sys
from collections.abc import Callable
from typing import Any

PATIENCE_S = 3


def impersonate(address: str, folder: str = "") -> str:
    """Joins as process 1, by JAX's own client, with the certificates in `folder` if there are any."""
    options = {"init_timeout": PATIENCE_S, "heartbeat_timeout": 10, "shutdown_on_destruction": False}
    if folder:
        files = {"mtls_key_file": "key", "mtls_cert_file": "chain", "mtls_ca_file": "authority"}
        options |= {option: f"{folder}/{name}.pem" for option, name in files.items()}
        options["mtls_peer_uri_prefix"] = "spmd-launch://"
    client = jax_client()(address, 1, **options)
    print("connecting", flush=True)
    client.connect()
    return "joined"


def garbage(address: str) -> str:
    """Sends bytes that belong to no protocol, and stays."""
    return send(address, bytes(range(256)) * 64)


def hold(address: str) -> str:
    """Connects, says nothing, and stays."""
    return send(address, b"")


def send(address: str, data: bytes) -> str:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    KEPT.append(connection)
    try:
        connection.sendall(data)
        return f"answered with {len(connection.recv(1 << 16))} bytes"
    except TimeoutError:
        return "no answer"
    except ConnectionError as error:
        return f"closed: {error}"


KEPT: list[socket.socket] = []  # until this process ends


def jax_client() -> Callable[..., Any]:
    """What `jax.distributed.initialize` connects with."""
    from jax._src.lib import _jax

    client: Callable[..., Any] = _jax.get_distributed_runtime_client
    return client


def main(kind: str) -> None:
    attack = {"impersonate": impersonate, "garbage": garbage, "hold": hold}[kind]
    if kind == "impersonate":
        jax_client()
    print("ready", flush=True)
    for line in sys.stdin:
        print(attack(*line.split()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
