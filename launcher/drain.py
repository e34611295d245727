"""Before `down` ends a cluster: none of its jobs runs, and who asked has their records in full; later nobody may."""

import math
import time
from collections.abc import Callable

from cluster.errors import ClusterError
from cluster.provider import Say
from cluster.record import Cluster
from launcher.errors import FailureError, NoAnswerError
from launcher.protocol import Connection
from launcher.record_copy import refresh
from launcher.went_down import went_down

PATIENCE_S = 30.0  # a supervisor that was ended is started again in a few seconds
PAUSE_S = 1.0

Find = Callable[[], Cluster | None]


def drain(cluster: Cluster, find: Find, say: Say, *, force: bool) -> None:
    """Ends the jobs that run, if that is asked for, and takes the records of all.

    Args:
        cluster: that is to go down.
        find: what its provider finds on its hosts under its name.
        say: receives one line for each step.
        force: end what runs, and go on where the supervisor does not answer.

    Raises:
        UserError: jobs run, and `force` is not set.
        FailureError: the head cannot be reached, or its supervisor does not answer in full for PATIENCE_S while the
            cluster lives, and `force` is not set.
    """
    problem = cluster.problem()
    if not force:
        _require_way(cluster, problem)
    if problem or not (cluster.is_remote or cluster.holder.alive()):
        if farewell := went_down(cluster):
            say(str(farewell))
        return
    until = math.inf  # known once it does not answer: copying may take longer
    while True:
        drained = False
        try:
            with Connection(cluster.socket) as connection:
                for job in connection.ask({"op": "drain", "force": force})["cancelled"]:
                    say(f"cancelled job {job}")
            drained = True
            refresh(cluster)
            return
        except FailureError as error:
            if farewell := went_down(cluster):
                say(str(farewell))
                return
            if force or not _lives(cluster, find):
                say(f"{error}; ending the cluster all the same")
                return
            if not isinstance(error, NoAnswerError) or time.monotonic() > until:
                raise FailureError(_refusal(cluster, error, drained)) from error
            if until == math.inf:
                say(f"{error}; asking again for up to {PATIENCE_S:g} s")
                until = time.monotonic() + PATIENCE_S
        time.sleep(PAUSE_S)


def _require_way(cluster: Cluster, problem: str) -> None:
    if problem and went_down(cluster) is None:
        unknown = f"whether jobs run on {cluster.name!r} is not known"
        raise FailureError(f"{problem}; {unknown}: --force ends what can be reached")


def _lives(cluster: Cluster, find: Find) -> bool:
    """Whether the process that holds the cluster does: then its supervisor is started again.

    Raises:
        FailureError: the head cannot be reached any more, and nobody can tell.
    """
    if not cluster.is_remote:
        return cluster.holder.alive()
    _require_way(cluster, cluster.problem())
    try:
        found = find()
    except ClusterError:  # there is a way to the head, but not to what else has to be asked
        return True
    return found is not None and found.cluster_id == cluster.cluster_id


def _refusal(cluster: Cluster, error: FailureError, drained: bool) -> str:
    lacking = (
        "no job of it runs, but what this machine has of their records is not complete"
        if drained
        else "whether jobs run on it is not known, nor whether this machine has their records in full"
    )
    return (
        f"cluster {cluster.name!r} is up still: {error}; {lacking}. Try again, or `spmd-launch down {cluster.name} "
        f"--force` takes it down all the same, and ends what runs"
    )
