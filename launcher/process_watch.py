"""Ends an actor's process when its raylet has died; Ray itself takes more than six seconds to notice."""

import os
import time

PERIOD_S = 0.2


def end_with_parent(parent: int) -> None:
    """Watches the parent, for ever; run it in a daemon thread.

    Args:
        parent: pid of the raylet, which forked this process.
    """
    while os.getppid() == parent:
        time.sleep(PERIOD_S)
    os._exit(1)
