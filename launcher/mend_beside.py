"""Brings back hosts that a cloud has taken, beside whoever follows a job: `python -m launcher.mend_beside CLUSTER`.

Asks the cloud now and then as long as hosts are lost: one that was only cut off joins again by itself. Tries once to
bring back what was taken, and ends. Prints a line for each thing a person should read. It is told to end by the end of
its input, and then gives back what it has asked for, which may take minutes.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Sequence

from cluster.errors import ClusterError, NotGivenError
from cluster.provider import Provider, Trouble, provider_for
from cluster.record import Cluster
from launcher.errors import FailureError, UserError
from launcher.mend import lost_hosts, mend
from launcher.sending import our_code

ASK_PERIOD_S = 10.0
GIVEN, NOT_GIVEN = 3, 1  # exit codes of a try: whether the cloud has given machines, if only for a while


def taken_hosts(troubles: Sequence[Trouble], lost: Collection[str]) -> tuple[list[str], str]:
    """Which lost hosts may be asked for again unbidden, and why they are gone, in words.

    Args:
        troubles: as the cloud tells them.
        lost: hosts that do not answer.
    """
    bad = [found for found in troubles if not found.by_order and not set(lost).isdisjoint(found.gone)]
    taken = [found for found in bad if not found.head_is_gone]  # where the head goes, all comes anew
    return [host for found in taken for host in found.gone if host in lost], ", ".join(found.text for found in taken)


def say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits any more, and what it does must come to its end
        print(text, flush=True)


def bring_back_taken(cluster: Cluster) -> int:
    """Returns an exit code: 0 when no host is lost any more, else how a try has ended.

    Raises:
        UserError, FailureError, ClusterError: nobody can be asked now.
    """
    while lost := lost_hosts(cluster):
        with contextlib.closing(provider_for(cluster.spec)) as provider:
            taken, why = taken_hosts(provider.troubles(), lost)
            if taken:
                say(f"! {why}; asking for new machines in place of {', '.join(taken)}")
                return _try_to_mend(provider, cluster, taken)
        time.sleep(ASK_PERIOD_S)
    return 0


def _try_to_mend(provider: Provider, cluster: Cluster, taken: Sequence[str]) -> int:
    try:
        mend(provider, cluster, taken, our_code(cluster), say)
    except FailureError as error:
        say(f"! {error}")
        return NOT_GIVEN if isinstance(error.__cause__, NotGivenError) else GIVEN
    return GIVEN


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
        return bring_back_taken(cluster)
    except (ClusterError, FailureError, UserError) as error:
        say(f"! {error}")
    except KeyboardInterrupt:
        pass
    return NOT_GIVEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
