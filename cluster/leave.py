"""Ends what a cluster has on this machine from inside it: `python -m cluster.leave NAME CLUSTER_ID`.

Started by a process of the cluster, and none itself: it has another session, another parent and no marker, so that it
is there when all others are gone.
"""

import dataclasses
import os
import subprocess
import sys
import time

from cluster import machine
from cluster.farewell import Farewell
from cluster.processes import MARKER, end_processes, marked_processes
from cluster.record import home

PAUSE_S = 1.0  # for the answer of who has started it to arrive
START_TIMEOUT_S = 60.0


def leave(name: str, cluster_id: str) -> None:
    """Begins to end it; returns when that goes on by itself.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be begun.
    """
    start_outside("cluster.leave", name, cluster_id)


def start_outside(module: str, *words: str) -> None:
    """Runs a module that forks, and ends in the parent; the child is not ended with the cluster.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be started.
    """
    subprocess.run(
        [sys.executable, "-m", module, *words],
        env=outside_environment(),
        cwd=home(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        timeout=START_TIMEOUT_S,
        check=True,
    )


def outside_environment() -> dict[str, str]:
    """The environment of a process that is not to be ended with the cluster."""
    return {key: value for key, value in os.environ.items() if key != MARKER}


def main(name: str, cluster_id: str) -> None:
    if os.fork():  # Ray ends the children of its workers
        os._exit(0)
    time.sleep(PAUSE_S)
    farewell = Farewell.prepared(name)
    forced = machine.remove(name, cluster_id)
    end_processes(marked_processes(cluster_id))  # if somebody has removed the folder, nothing else knows of them
    if farewell is not None:  # this is the head
        dataclasses.replace(farewell, left=(*farewell.left, *forced)).save()


if __name__ == "__main__":
    main(*sys.argv[1:])
