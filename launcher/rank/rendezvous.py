"""`jax.distributed.initialize` without a race: rank 0 listens first, then tells where; the others connect after that.

A rank that connects before the service listens loses about a second to a gRPC retry, and one that connects to a port
somebody else has taken never finds its peers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from launcher.rank.coordinator_port import announced
from launcher.rank.gloo_address import bind_gloo
from launcher.rank.mutual_tls import mutual_tls_options, why_unsupported

INITIALIZATION_TIMEOUT_S = 120
HEARTBEAT_TIMEOUT_S = 30
SHUTDOWN_TIMEOUT_S = 300


def guard_channels(assignment: Mapping[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Binds gloo to this host's address; tells what this JAX leaves unguarded. Call it before JAX makes its backend.

    Args:
        assignment: of this rank.
        send: to the agent.
    """
    for channel, why in (("coordination service", why_unsupported()), ("gloo", bind_gloo(assignment["address"]))):
        if why and assignment["rank"] == 0 and assignment["attempt"] == 1:  # alike on all ranks: once is enough
            send({"type": "unguarded", "channel": channel, "why": why})


def serve(host_address: str, num_ranks: int, tls: Mapping[str, str], publish: Callable[[str], None]) -> None:
    """Rank 0: starts the coordination service, proves that it listens, publishes its address, and waits for all.

    Args:
        host_address: this host's address; the service binds it and no other.
        num_ranks: how many processes will connect, this one among them.
        tls: as in `join`.
        publish: called once, from another thread, as soon as the service listens.

    Raises:
        PortLostError: another process has the port that the kernel had chosen.
    """
    with announced(host_address, publish) as address:
        join(address, num_ranks, 0, tls, bind_address=address)


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
