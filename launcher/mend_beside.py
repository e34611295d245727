"""Brings back hosts that a cloud has taken, beside whoever follows a job: `python -m launcher.mend_beside CLUSTER`.

Asks the cloud now and then as long as hosts are lost: one that was only cut off joins again by itself. Prints a line
for each thing a person should read. It is told to end by the end of its input, and then gives back what it has asked
for.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Sequence

from cluster.errors import ClusterError
from cluster.provider import Trouble, provider_for
from cluster.record import Cluster
from launcher.errors import FailureError, UserError
from launcher.mend import lost_hosts, mend
from launcher.sending import our_code

ASK_PERIOD_S = 10.0
RETRY_S = 60.0  # where the cloud has refused, or another client is at it


def taken_hosts(troubles: Sequence[Trouble], lost: Collection[str]) -> tuple[list[str], str]:
    """Which lost hosts may be asked for again unbidden, and why they are gone, in words.

    Args:
        troubles: as the cloud tells them.
        lost: hosts that do not answer.
    """
    taken = [found for found in troubles if not found.by_order and not set(lost).isdisjoint(found.gone)]
    return [host for found in taken for host in found.gone if host in lost], ", ".join(found.text for found in taken)


def say(text: str) -> None:
    print(text, flush=True)


def bring_back_taken(cluster: Cluster) -> None:
    """Returns when no host is lost any more.

    Raises:
        UserError, FailureError, ClusterError: they cannot be brought back now.
    """
    while lost := lost_hosts(cluster):
        with contextlib.closing(provider_for(cluster.spec)) as provider:
            taken, why = taken_hosts(provider.troubles(), lost)
            if taken:
                say(f"! {why}; asking for new machines in place of {', '.join(taken)}")
                cluster = mend(provider, cluster, taken, our_code(cluster), say)
                continue
        time.sleep(ASK_PERIOD_S)


def _end_with_follower() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def main(name: str) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cluster = Cluster.load(name)
    if cluster is None:
        return 1
    threading.Thread(target=_end_with_follower, daemon=True).start()
    try:
        bring_back_taken(cluster)
        return 0
    except (ClusterError, FailureError, UserError) as error:
        say(f"! {error}")
        time.sleep(RETRY_S)
    except KeyboardInterrupt:
        pass
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except KeyboardInterrupt:  # while it waited
        sys.exit(1)
