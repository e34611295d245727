"""Ends what a cluster pays for at its limits, where nothing else of it is left: `python -m launcher.last_guard NAME`.

Runs on the head beside the cluster, and is no part of it: it is there when the holder has died, and Ray with it. While
the holder lives, the supervisor counts (`launcher.cost_guard`); from then on this does, from where that was. It ends
when the cluster is removed. A head that starts anew has none.
"""

import datetime
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable

from cluster.delete_from_head import PAUSES_S, delete_what_costs
from cluster.errors import ClusterError
from cluster.farewell import Farewell
from cluster.leave import start_outside
from cluster.record import Cluster
from launcher.job_folder import all_jobs, settle_lost_jobs
from launcher.limits import Clock, because, limits_of

PERIOD_S = 2.0
CLOCK = "guard.json"  # in the cluster's folder
LOG = "last-guard.log"  # likewise; held by the one that watches
DIED = "its Ray had died on the head"


def begin(name: str) -> None:
    """Starts it on this machine, the head; there may be one already, which goes on.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be started.
    """
    start_outside("launcher.last_guard", name)


def kept_clock(cluster: Cluster) -> Clock | None:
    """What the last supervisor of a cluster has counted from; None: nothing is kept."""
    try:
        return Clock.from_json(json.loads((cluster.folder / CLOCK).read_text()))
    except FileNotFoundError:
        return None


def end_when_over(cluster: Cluster, delete: Callable[[], str]) -> str:
    """Waits until the holder has died and a limit is over, and deletes what costs money until that succeeds.

    Args:
        cluster: on whose head this is.
        delete: returns why it could not, or ''.

    Returns:
        Why it was ended, in words; '' if the cluster is not there any more.
    """
    limits, tries, began = limits_of(cluster.spec), 0, Clock(up_since=time.monotonic(), idle_since=None)
    clock: Clock | None = None  # until the holder has died
    while _is_there(cluster):
        if not cluster.holder.alive():
            now = time.monotonic()
            clock = (clock or kept_clock(cluster) or began).moved_on(limits, busy=False, now=now)
            end = clock.next_end(limits)
            if end is not None and end.at <= now:
                if not (problem := delete()):
                    return f"{because(end.reason, cluster.spec)}; {DIED}"
                _log(problem)
                time.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
                tries += 1
        time.sleep(PERIOD_S)
    return ""


def _is_there(cluster: Cluster) -> bool:
    """Whether neither `down` has removed it nor an `up` has brought up another under its name."""
    try:
        found = Cluster.load(cluster.name)
    except ClusterError:
        return False
    return found is not None and found.cluster_id == cluster.cluster_id


def leave_last_words(cluster: Cluster, why: str) -> None:
    """Tells clients, in the storage, in the seconds that this machine still has."""
    from launcher.went_down import keep_in_storage

    settle_lost_jobs(all_jobs(), cluster.name, DIED)
    jobs = {
        job["name"]: {"job_id": job["spec"]["job_id"], "state": job["state"], "message": job.get("message") or ""}
        for folder in all_jobs()
        if (job := folder.job())["cluster"] == cluster.name
    }
    keep_in_storage(Farewell.now(cluster, why, jobs), cluster.spec)


def _log(text: str) -> None:
    print(f"{datetime.datetime.now().isoformat(timespec='seconds')} {text}", flush=True)


def main(name: str) -> None:
    if os.fork():  # Ray ends the children of its workers
        os._exit(0)
    cluster = Cluster.load(name)
    if cluster is None:
        return
    with (cluster.folder / LOG).open("a") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # of a supervisor before this one
            return
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        if why := end_when_over(cluster, lambda: delete_what_costs(name)):
            _log(f"deleted, {why}")
            leave_last_words(cluster, why)


if __name__ == "__main__":
    main(*sys.argv[1:])
