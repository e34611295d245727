"""The client's end of `launcher.start_actors`: a process on the head that starts agents and supervisor, and ends."""

import contextlib
import json
import threading

from cluster.errors import ClusterError
from cluster.place_code import Code
from cluster.provider import Provider
from cluster.record import Cluster
from cluster.ssh import let_go
from launcher.attempt import HostFacts
from launcher.errors import FailureError

ANSWER_TIMEOUT_S = 150.0


class Starter:
    """Imports Ray on the head while the hosts start, which takes as long as a third of that.

    Args:
        provider: of the cluster.
        code: what its processes run.
    """

    def __init__(self, provider: Provider, code: Code):
        self._process = provider.start_on_head("launcher.start_actors", code)

    def start(self, cluster: Cluster, code_digest: str) -> list[HostFacts]:
        """Starts all actors, now that the hosts are up, and returns what each host has.

        Args:
            cluster: as its head is to record it.
            code_digest: of the code that the head has.

        Raises:
            FailureError: not all of them answered, or a host does not reach the storage.
        """
        order = json.dumps({"name": cluster.name, "cluster": cluster.to_json(), "code_digest": code_digest})
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        limit = threading.Timer(ANSWER_TIMEOUT_S, process.kill)
        limit.daemon = True  # an interrupt may come before it can be cancelled
        limit.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended; what it has said tells why
                process.stdin.write(order.encode() + b"\n")
                process.stdin.flush()
            # Its input stays open, because it ends with that. What is no answer, Ray has printed.
            output = next((line for line in process.stdout if line.startswith(b"{")), b"")
            _, errors = process.communicate()
        finally:
            limit.cancel()
        if not output:
            last = "\n".join(errors.decode(errors="replace").strip().splitlines()[-15:])
            raise ClusterError(f"cluster {cluster.name!r}: its agents did not start:\n{last or 'no answer in time'}")
        answer = json.loads(output)
        if "error" in answer:
            raise FailureError(answer["error"])
        return [HostFacts(**fact) for fact in answer["facts"]]

    def end(self) -> None:
        """Takes the order back: it ends with its input."""
        let_go(self._process)
