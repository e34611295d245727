"""A slice as the cloud shows it: its request (a queued resource) and its TPU VM. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence

from cluster.labels import CLUSTER, ID

# States of a request or of a TPU VM from which no way leads back: the slice must be requested again.
SUSPENDED_REQUESTS = ("SUSPENDING", "SUSPENDED")
DEAD_REQUESTS = ("FAILED", *SUSPENDED_REQUESTS)
STOPPED_NODES = ("STOPPED", "STOPPING")  # by a person, or on the way of a request that is suspended
DEAD_NODES = ("PREEMPTED", "TERMINATED", "HIDING", "HIDDEN", *STOPPED_NODES)
DELETING = "DELETING"
ABSENT = "ABSENT"  # our word: neither is there


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """One slice.

    Attributes:
        name: of the request and of the TPU VM.
        zone: where it is; '' where it is not there.
        request: its state, as the API says (`WAITING_FOR_RESOURCES`); '' where there is none.
        node: the TPU VM's state (`READY`); '' where there is none.
        health: the TPU VM's, where it is not well (`UNHEALTHY_MAINTENANCE`); else ''.
        problem: why the request failed; '' if it did not.
        ended_by_user: its suspension was a person's order, not the service's.
        is_short: that may be otherwise in another zone.
        labels: that it has.
        tpu_type: as Google names it (`v5litepod-16`).
        spot: whether it may be taken away.
        addresses: (internal, external or '') of each machine, in the order of worker ids.
        created: when, ISO 8601; '': not known.
    """

    name: str
    zone: str = ""
    request: str = ""
    node: str = ""
    health: str = ""
    problem: str = ""
    ended_by_user: bool = False
    is_short: bool = False
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tpu_type: str = ""
    spot: bool = False
    addresses: Sequence[tuple[str, str]] = ()
    created: str = ""

    @property
    def state(self) -> str:
        """In one word: of the request until it is ACTIVE, then of the TPU VM."""
        if self.node in DEAD_NODES or self.request in ("", "ACTIVE"):
            return self.node or self.request or ABSENT
        return self.request

    @property
    def condition(self) -> str:
        """Its state, and what the cloud says of its health where that is not well."""
        return f"{self.state} {self.health}".strip()

    @property
    def is_there(self) -> bool:
        return bool(self.request or self.node)

    @property
    def is_going(self) -> bool:
        """Whether its deletion has begun."""
        return (self.request or self.node) == DELETING

    @property
    def is_by_order(self) -> bool:
        """Whether it is gone because somebody wanted it: deleted or stopped, not taken away."""
        stopped = self.node in STOPPED_NODES and self.request not in DEAD_REQUESTS
        return self.is_going or not self.is_there or self.ended_by_user or stopped

    @property
    def is_dead(self) -> bool:
        return self.request in DEAD_REQUESTS or self.node in DEAD_NODES

    def is_ready(self, num_hosts: int) -> bool:
        """Whether all its machines can be reached for.

        Not yet where only its request says that it is being made: the two are not listed at one moment.
        """
        is_good = not self.is_dead and not self.is_going
        return self.state == "READY" and len(self.addresses) == num_hosts and is_good

    def is_of(self, cluster: str, request_id: str) -> bool:
        """Whether that `up` of that cluster has made it."""
        return self.labels.get(CLUSTER) == cluster and self.labels.get(ID) == request_id
