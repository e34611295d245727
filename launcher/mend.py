"""Brings hosts back that a running cluster has lost: jobs that wait for them go on, and others grow back."""

import contextlib
import dataclasses
import secrets
import threading
from collections.abc import Iterator, Sequence

from cluster.errors import ClusterError
from cluster.place_code import Code
from cluster.provider import Provider, Say
from cluster.record import Cluster
from launcher.errors import FailureError, UserError
from launcher.protocol import Connection

WORD_PERIOD_S = 15.0  # a word is good for four times as long (launcher.host_return)
TAKE_IN_TIMEOUT_S = 400.0


def lost_hosts(cluster: Cluster) -> list[str]:
    """Hosts of a cluster that do not answer its supervisor; not the head, without which there would be none.

    Raises:
        FailureError: the supervisor does not answer either.
    """
    with Connection(cluster.socket) as connection:
        hosts: list[str] = connection.ask({"op": "lost"})["hosts"]
    head = cluster.hosts[0].name if cluster.spec.provider.owns_ray else ""
    return [host for host in hosts if host != head]


def mend(provider: Provider, cluster: Cluster, lost: Sequence[str], code: Code, say: Say) -> Cluster:
    """Brings back what can be brought back of these hosts; where it fails, the cluster is as it was.

    Args:
        provider: of the cluster.
        cluster: that is up, as this client records it.
        lost: names of hosts.
        code: that the cluster runs.
        say: receives one line for each step.

    Returns:
        The cluster as it is now, on record.

    Raises:
        UserError: another client brings hosts back, or the cluster goes down.
        FailureError: which hosts stay lost, and why; others may be back.
    """
    with _word(cluster, lost) as by:
        try:
            hosts = provider.mend(cluster, lost, code, say)
            order = {"op": "take-in", "by": by, "hosts": [dataclasses.asdict(host) for host in hosts]}
            with Connection(cluster.socket, timeout_s=TAKE_IN_TIMEOUT_S) as connection:
                record = connection.ask(order)["cluster"]
            mended = provider.attach(Cluster.from_json(cluster.name, record))
        except (ClusterError, FailureError) as error:
            left = _unmend(provider, code)
            goes_on = f"cluster {cluster.name!r} goes on without {', '.join(lost)}"
            raise FailureError(f"{goes_on}: {error}{left}") from error
        except BaseException:  # an interrupt too must not leave half a host
            _unmend(provider, code)
            raise
    for host in hosts:
        say(f"host {host.name} is back")
    back = {host.name for host in hosts}
    if missing := [host for host in lost if host not in back]:
        raise FailureError(f"cluster {cluster.name!r} goes on without {', '.join(missing)}; `up` tries again")
    return mended


def _unmend(provider: Provider, code: Code) -> str:
    try:
        provider.unmend(code)
    except ClusterError as left:
        return f"\nnot all that was begun could be undone: {left}"
    return ""


@contextlib.contextmanager
def _word(cluster: Cluster, lost: Sequence[str]) -> Iterator[str]:
    """While this is entered the supervisor knows that these hosts come back; gives the name of whose word it is."""
    by, ended = secrets.token_hex(8), threading.Event()
    _give_word(cluster, by, lost)

    def give_again() -> None:
        while not ended.wait(WORD_PERIOD_S):
            with contextlib.suppress(FailureError, UserError):  # the way to the head may be open again later
                if not cluster.problem():
                    _give_word(cluster, by, lost)

    thread = threading.Thread(target=give_again, daemon=True)
    thread.start()
    try:
        yield by
    finally:
        ended.set()
        with contextlib.suppress(FailureError, UserError):
            _give_word(cluster, by, ())


def _give_word(cluster: Cluster, by: str, lost: Sequence[str]) -> None:
    with Connection(cluster.socket) as connection:
        connection.ask({"op": "mend", "by": by, "hosts": list(lost)})
