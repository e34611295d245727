"""Brings hosts back that a running cluster has lost: jobs that wait for them go on, and others grow back."""

import contextlib
import dataclasses
import secrets
import threading
from collections.abc import Sequence

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
    with _Word(cluster, lost) as word:
        try:
            hosts = provider.mend(cluster, lost, code, say)
            word.give([*lost, *(host.name for host in hosts)])  # of a slice that was lost in part all hosts are new
            order = {"op": "take-in", "by": word.by, "hosts": [dataclasses.asdict(host) for host in hosts]}
            with Connection(cluster.socket, timeout_s=TAKE_IN_TIMEOUT_S) as connection:
                record = connection.ask(order)["cluster"]
            mended = provider.attach(Cluster.from_json(cluster.name, record))
        except (ClusterError, FailureError, UserError) as error:
            left = _unmend(provider, code, say)
            goes_on = f"cluster {cluster.name!r} goes on without {', '.join(lost)}"
            raise FailureError("\n".join([f"{goes_on}: {error}", *left])) from error
        except BaseException:  # an interrupt too must not leave half a host
            say("undoing what was begun")
            for line in _unmend(provider, code, say):
                say(f"! {line}")
            raise
    for host in hosts:
        say(f"host {host.name} is back")
    back = {host.name for host in hosts}
    if missing := [host for host in lost if host not in back]:
        raise FailureError(f"cluster {cluster.name!r} goes on without {', '.join(missing)}; `up` tries again")
    return mended


def _unmend(provider: Provider, code: Code, say: Say) -> list[str]:
    """Takes back what was begun; returns what may be left. It begins anew after an interrupt, and ends at the next."""
    try:
        return _try_to_unmend(provider, code)
    except KeyboardInterrupt:
        say("! interrupted while it undoes what was begun, and going on with that: another interrupt leaves it there, "
            "where it may cost (`spmd-launch status`, `spmd-launch down`)")  # fmt: skip
        for line in _try_to_unmend(provider, code):
            say(f"! {line}")
        raise


def _try_to_unmend(provider: Provider, code: Code) -> list[str]:
    try:
        provider.unmend(code)
    except ClusterError as left:
        return [f"not all that was begun could be undone, and it may cost: {left}"]
    return []


class _Word:
    """While this is entered the supervisor knows which hosts come back.

    Attributes:
        by: whose word it is.
    """

    def __init__(self, cluster: Cluster, hosts: Sequence[str]):
        self.by = secrets.token_hex(8)
        self._cluster, self._hosts = cluster, hosts
        self._ended = threading.Event()
        self._lock = threading.Lock()  # an older word must not come after a newer one

    def __enter__(self) -> "_Word":
        self.give(self._hosts)
        threading.Thread(target=self._give_again, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with contextlib.suppress(FailureError, UserError):
            self.give(())

    def give(self, hosts: Sequence[str]) -> None:
        """These hosts come back, from now on.

        Raises:
            UserError: another client brings hosts back.
            FailureError: the supervisor does not answer.
        """
        with self._lock:
            self._hosts = hosts
            self._tell()

    def _give_again(self) -> None:
        while not self._ended.wait(WORD_PERIOD_S):
            with contextlib.suppress(FailureError, UserError):  # the way to the head may be open again later
                if not self._cluster.problem():
                    with self._lock:
                        self._tell()

    def _tell(self) -> None:
        with Connection(self._cluster.socket) as connection:
            connection.ask({"op": "mend", "by": self.by, "hosts": list(self._hosts)})
