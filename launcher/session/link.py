"""The connection to the supervisor that a gang lives by: a thread hears it, so that Ctrl-C never cuts a message."""

import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence

from cluster.record import Cluster
from launcher.errors import FailureError
from launcher.protocol import Connection, Message
from launcher.sending import ask_on
from launcher.session.errors import GangEndedError
from launcher.submission import Prepared
from launcher.user_lines import UserLines
from launcher.words import waits_for

HANG_UP_S = 5.0


class Link:
    """One life of a gang, seen from its client.

    Args:
        prepared: its job.
        wait: queue behind other jobs; else be refused if hosts are not free.
        show_output: whether to print what the ranks print.

    Attributes:
        hosts: names by rank.
        why_ended: why it has ended; "" while it has not.

    Raises:
        UserError: refused.
        GangEndedError: it has ended before it was ready.
    """

    def __init__(self, prepared: Prepared, *, wait: bool, show_output: bool):
        cluster: Cluster = prepared.cluster
        self.hosts: Sequence[str] = ()
        self.why_ended = ""
        self._name = prepared.spec.name
        self._show_output = show_output
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._pieces: defaultdict[tuple[int, int], bytearray] = defaultdict(bytearray)
        self._lines: defaultdict[int, UserLines] = defaultdict(UserLines)
        self._connection = Connection(cluster.socket, timeout_s=None)
        try:
            request = {"op": "gang", "spec": prepared.spec.to_json(), "wait": wait}
            answer = ask_on(self._connection, request, prepared.code, prepared.files)
        except BaseException:
            self._connection.close()
            raise
        if holders := answer["waits_for"]:
            print(f"gang {prepared.spec.name} {waits_for(holders)}", file=sys.stderr, flush=True)
        self._hearing = threading.Thread(target=self._hear, name=f"gang {prepared.spec.name}", daemon=True)
        self._hearing.start()
        try:
            self.hosts = self._expect("ready")["hosts"]
        except BaseException:
            self.hang_up()
            raise

    def call(self, request: Message, payload: bytes) -> None:
        """Sends a call.

        Raises:
            GangEndedError: nobody takes it.
        """
        self.require_alive()
        self._pieces.clear()
        try:
            self._connection.send({"op": "call", **request}, payload)
        except FailureError as error:
            self._hearing.join(HANG_UP_S)  # it knows better why
            raise self._ended(self.why_ended or str(error)) from error
        except KeyboardInterrupt:
            self.hang_up()  # half a message is sent
            raise

    def answer(self, number: int) -> Message:
        """Waits for the answer to that call, for as long as it takes."""
        while (answer := self._expect("answer"))["number"] != number:
            pass  # of a call that was left by Ctrl-C
        return answer

    def returned(self, number: int, rank: int) -> bytearray:
        """What a rank has returned in that call."""
        return self._pieces.pop((number, rank))

    def interrupt(self) -> None:
        """Has the ranks interrupted."""
        self._connection.send({"op": "interrupt"})

    def end(self) -> None:
        """Ends the gang well, and waits until its hosts are free."""
        try:
            if not self.why_ended:
                self._connection.send({"op": "end"})
                self._hearing.join()
        except FailureError:
            pass  # it has ended meanwhile
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        """Leaves the gang, which then ends by itself."""
        self._connection.hang_up()
        self._hearing.join(HANG_UP_S)
        if not self._hearing.is_alive():
            self._connection.close()

    def require_alive(self) -> None:
        """Raises GangEndedError where the gang has ended."""
        if self.why_ended:
            raise self._ended(self.why_ended)

    def _ended(self, why: str) -> GangEndedError:
        return GangEndedError(f"{self._name} has ended, and its arrays are gone; gang.restart() makes it anew. {why}")

    def _expect(self, kind: str) -> Message:
        message = self._messages.get()
        if message["type"] != kind:
            self._messages.put(message)  # the end, which is told to whoever asks next too
            raise self._ended(self.why_ended)
        return message

    # -- in the thread

    def _hear(self) -> None:
        ended: Message = {"type": "ended"}
        try:
            while True:
                message, data = self._connection.receive()
                match message["type"]:
                    case "output":
                        rank = message["rank"]
                        self._show(rank, self._lines[rank].add(message["text"]))
                    case "note":
                        print(f"! {message['text']}", file=sys.stderr, flush=True)
                    case "piece":
                        self._pieces[message["number"], message["rank"]] += data
                    case "ended":
                        self.why_ended = message["message"] or "It was closed."
                        break
                    case _:
                        self._show_rest()
                        self._messages.put(message)
        except (FailureError, OSError, ValueError) as error:  # closed, here or there
            self.why_ended = f"The connection to it is lost: {error}"
        finally:
            self.why_ended = self.why_ended or "It could not be heard any more."
            self._messages.put(ended)

    def _show_rest(self) -> None:
        for rank in sorted(self._lines):
            self._show(rank, self._lines[rank].end())

    def _show(self, rank: int, lines: Sequence[str]) -> None:
        if lines and self._show_output:
            sys.stdout.write("".join(f"[rank {rank}] {line}\n" for line in lines))
            sys.stdout.flush()
