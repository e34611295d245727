"""What `test_gloo_address` runs on two real processes."""

import ctypes
import socket
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
