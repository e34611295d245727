"""A job as it goes on, from a supervisor that may be away for a while."""

import time
from collections.abc import Iterator
from typing import Any

from cluster.farewell import Farewell
from cluster.record import Cluster
from launcher.errors import FailureError
from launcher.lost_head import HeadWatch
from launcher.protocol import Connection
from launcher.record_names import address
from launcher.went_down import went_down

RECONNECT_S = 30.0
RECONNECT_REMOTE_S = 900.0  # a way to the head that is cut, or a laptop that slept
RECONNECT_PERIOD_S = 0.2
DIED_S = 2.0  # a cluster that takes itself down has left its last words by then
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")

Snapshot = dict[str, Any]


def snapshots(cluster: Cluster, job: str) -> Iterator[Snapshot]:
    """Snapshots until the job has ended; while nobody answers, the last one with `silent_s`.

    A supervisor that ends is started again, and a way to the head that is cut may be open again: it is asked again.

    Args:
        cluster: that it is on.
        job: its name, or NAME.ID.

    Raises:
        FailureError: no answer for RECONNECT_S (once there was one, from afar, RECONNECT_REMOTE_S), or the cluster
            has died.
        HeadLostError: the cloud says that none will come.
    """
    limit_s, asked = RECONNECT_S, address(job)
    heard = lived = time.monotonic()
    last: Snapshot = {}
    watch = HeadWatch(cluster)
    while True:
        try:
            with Connection(cluster.socket, timeout_s=None) as connection:
                last = connection.ask({"op": "watch", **asked})
                limit_s = RECONNECT_REMOTE_S if cluster.is_remote else RECONNECT_S
                heard = time.monotonic()
                yield last
                for last in connection.lines():
                    heard = time.monotonic()
                    yield last
                if last["state"] in ENDED:
                    return
        except FailureError:
            farewell = went_down(cluster)
            if farewell is not None and (end := farewell.end_of(**asked)):
                yield last | end
                return
            if time.monotonic() - heard > limit_s:
                raise
            if not _has_died(cluster):
                lived = time.monotonic()
            elif time.monotonic() - max(lived, heard) > DIED_S:
                raise FailureError(_what_to_do(cluster, job)) from None
            watch.require_hope()
        if last:
            yield last | {"silent_s": time.monotonic() - heard}
        time.sleep(RECONNECT_PERIOD_S)
        if cluster.is_remote:
            cluster.alive()  # which opens the way again where it can


def _has_died(cluster: Cluster) -> bool:
    """Whether what held all of a cluster here has ended, without anybody having asked for it: nobody will answer."""
    if cluster.is_remote or cluster.alive():
        return False
    return cluster.folder.exists() and Farewell.prepared(cluster.name) is None


def _what_to_do(cluster: Cluster, job: str) -> str:
    return (
        f"cluster {cluster.name!r} has died: process {cluster.holder.pid}, which held all of it, has ended. What job "
        f"{job!r} has saved is kept: `spmd-launch up FILE`, then `spmd-launch submit --resume {job}`"
    )
