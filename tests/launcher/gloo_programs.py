"""What `test_gloo_address` runs on two real processes."""

import ctypes
import socket
import struct
import sys
import time
from typing import Any

CLONE_NEWUTS = 0x04000000


def first_psum(context: Any, *, address: str, hostname: str) -> dict[str, Any]:
    """Sums over both processes with gloo on `address`; tells where this process listens.

    Args:
        address: for gloo; "": as JAX does it.
        hostname: which this process sees as its host's name; "": as it is.
    """
    import jax
    import psutil

    from launcher.rank.gloo_address import bind_gloo
    from workloads.psum_check.run import AXIS, first_psum

    if hostname:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS):
            raise OSError(ctypes.get_errno(), "unshare")
        socket.sethostname(hostname)
    why = bind_gloo(address) if address else ""
    total, _ = first_psum(context.mesh({AXIS: jax.device_count()}), context)
    found = psutil.Process().net_connections("tcp")
    listening = [c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN]
    return {"why": why, "total": total, "listening": listening}


def later_group(context: Any, *, stranger: bool) -> int:
    """Sums over all processes, then over one device of each, which is a group of its own; 1 if all is well.

    Args:
        stranger: connects in between to where gloo listens, and sends the numbers of the next pairs.
    """
    import jax
    import numpy as np
    import psutil
    from jax.sharding import Mesh

    from launcher.rank.gloo_address import bind_gloo
    from workloads.psum_check.run import AXIS, first_psum

    bind_gloo("127.0.0.1")
    first_psum(context.mesh({AXIS: jax.device_count()}), context)
    kept = []
    if stranger:
        found = psutil.Process().net_connections("tcp")
        port = next(c.laddr.port for c in found if c.status == psutil.CONN_LISTEN and c.laddr.ip == "127.0.0.1")
        for number in range(64):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(struct.pack("<Q", number))
            kept.append(connection)
    time.sleep(1.0)  # until the numbers have been read, on both
    pair = Mesh(np.array([jax.devices()[0], jax.devices()[2]]), (AXIS,))
    print("the later group begins", file=sys.stderr, flush=True)
    total, _ = first_psum(pair, context)
    return total
