"""Binds gloo, the collectives between CPU processes, to this host's address.

JAX gives gloo no address, so gloo takes what this host's own name resolves to: on Debian 127.0.1.1, where no other
host can connect, and on other machines an address that may face the outside.
"""

import re
from typing import Any

from jax._src import xla_bridge  # where JAX makes its collectives; there is no public way to pass an address

KNOWN_PARAMETERS = ["distributed_client", "hostname", "interface"]


def why_unsupported() -> str:
    """Why gloo cannot be given an address on this JAX; empty if it can."""
    make = getattr(getattr(xla_bridge, "_jax", None), "make_gloo_tcp_collectives", None)
    if make is None:
        return "this JAX has no jax._src.xla_bridge._jax.make_gloo_tcp_collectives"
    first = (make.__doc__ or "").partition("\n")[0]  # `inspect.signature` knows no functions of C++
    if re.findall(r"(\w+):", first) != KNOWN_PARAMETERS:
        return f"jax._src.xla_bridge._jax.make_gloo_tcp_collectives is not the known one: {first}"
    return ""


def bind_gloo(address: str) -> str:
    """Has gloo listen on `address` and nowhere else; call it before JAX makes its backend.

    Args:
        address: of this host, numeric.

    Returns:
        Why it does not on this JAX; empty if it does.
    """
    why = why_unsupported()
    if not why:
        original = xla_bridge._jax.make_gloo_tcp_collectives

        def make(distributed_client: Any, hostname: str | None = None, interface: str | None = None) -> Any:
            if interface is None:  # what a caller has asked for stands
                hostname = hostname or address
            return original(distributed_client=distributed_client, hostname=hostname, interface=interface)

        make.__doc__ = original.__doc__
        xla_bridge._jax.make_gloo_tcp_collectives = make
    return why
