"""Ends an actor's process when its raylet has died; Ray itself takes more than six seconds to notice."""

import os
import signal
import time

import psutil

from cluster.processes import ProcessId

PERIOD_S = 0.2
PERIODS_PER_LOOK = 25


def end_with_parent(parent: int) -> None:
    """Watches the parent, for ever, and ends with it; run it in a daemon thread.

    The parent's other children end too: Ray's own agents outlive their raylet by minutes, and when the holder was
    killed nobody else is left to end them.

    Args:
        parent: pid of the raylet, which forked this process.
    """
    siblings: set[ProcessId] = set()
    periods = 0
    while os.getppid() == parent:
        if periods % PERIODS_PER_LOOK == 0:
            siblings = _children(parent) or siblings
        periods += 1
        time.sleep(PERIOD_S)
    for sibling in siblings:
        sibling.signal(signal.SIGKILL)
    os._exit(1)


def _children(parent: int) -> set[ProcessId]:
    try:
        children = psutil.Process(parent).children()
    except psutil.NoSuchProcess:
        return set()
    identities = {ProcessId.of(child.pid) for child in children if child.pid != os.getpid()}
    return {identity for identity in identities if identity is not None}
