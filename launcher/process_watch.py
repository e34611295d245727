"""Ends an actor's process when its raylet has died; Ray itself takes more than six seconds to notice."""

import os
import signal
import threading
import time
from collections.abc import Callable

import psutil

from cluster.processes import ProcessId

PERIOD_S = 0.2
PERIODS_PER_LOOK = 25


def end_with_raylet(owns_ray: bool, at_last: Callable[[], None] = lambda: None) -> None:
    """From now on this process, a child of the raylet, ends when that has.

    Args:
        owns_ray: whether the raylet is ours. Then its other children end too: Ray's own agents outlive it by minutes,
            and when the holder was killed nobody else is left to end them. Else they are other people's.
        at_last: called before this process ends.
    """
    threading.Thread(target=_watch, args=(os.getppid(), owns_ray, at_last), daemon=True).start()


def _watch(parent: int, owns_ray: bool, at_last: Callable[[], None]) -> None:
    siblings: set[ProcessId] = set()
    periods = 0
    while os.getppid() == parent:
        if owns_ray and periods % PERIODS_PER_LOOK == 0:
            siblings = _children(parent) or siblings
        periods += 1
        time.sleep(PERIOD_S)
    for sibling in siblings:
        sibling.signal(signal.SIGKILL)
    try:
        at_last()
    finally:
        os._exit(1)


def _children(parent: int) -> set[ProcessId]:
    try:
        children = psutil.Process(parent).children()
    except psutil.NoSuchProcess:
        return set()
    identities = {ProcessId.of(child.pid) for child in children if child.pid != os.getpid()}
    return {identity for identity in identities if identity is not None}
