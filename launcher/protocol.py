"""How a client and the supervisor talk: JSON lines over a Unix socket, and raw bytes where a line announces them.

A socket and not Ray's client, because importing Ray and joining the cluster costs more than starting a job does
(docs/architecture.md has the figures). The socket lies in a folder that only its user can enter.
"""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.errors import FailureError, NoAnswerError, UserError

MAX_LINE = 64 * 2**20
CONNECT_TIMEOUT_S = 10.0
CLIENT_TIMEOUT_S = 120.0

Message = dict[str, Any]


class Line(dict[str, Any]):
    """A line as the other side has sent it, or an object in it: what it lacks, a side of another version would have."""

    def __missing__(self, key: str) -> Any:
        raise FailureError(
            f"client and supervisor are of different versions of spmd-launch: expected a message with {key!r}, got one "
            f"with {', '.join(map(repr, self)) or 'nothing'}; `spmd-launch down NAME && spmd-launch up FILE`"
        )


class Connection:
    """The client's end; one request at a time, used as a context manager.

    Args:
        path: the supervisor's socket.
        timeout_s: the longest silence to wait through; None: for ever.

    Raises:
        NoAnswerError: nobody listens.
    """

    def __init__(self, path: Path, timeout_s: float | None = CLIENT_TIMEOUT_S):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(CONNECT_TIMEOUT_S)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise NoAnswerError(f"the cluster's supervisor does not answer ({error.strerror or error})") from error
        self._socket.settimeout(timeout_s)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def hang_up(self) -> None:
        """Ends the connection for both sides, also under a thread that waits in `receive`."""
        with contextlib.suppress(OSError):  # the other side has
            self._socket.shutdown(socket.SHUT_RDWR)

    def ask(self, request: Message, data: bytes = b"") -> Message:
        """Sends one request and returns the first line of the answer.

        Args:
            request: with `op`.
            data: bytes that follow the line.

        Raises:
            UserError, FailureError: as the supervisor raised them.
        """
        self.send(request, data)
        return self._next()

    def send(self, request: Message, data: bytes = b"") -> None:
        """Sends one request, whose answer `receive` or `lines` bring.

        Raises:
            FailureError: nobody listens any more.
        """
        line = json.dumps({**request, "num_bytes": len(data)}).encode() + b"\n"
        try:
            self._socket.sendall(line)
            if data:
                self._socket.sendall(data)
        except OSError as error:  # through ssh, a connection is made here even where nobody listens on the head
            raise NoAnswerError(f"the cluster's supervisor does not answer ({error.strerror or error})") from error

    def receive(self) -> tuple[Message, bytes]:
        """The next line of a supervisor that speaks whenever it likes, and the bytes after it.

        Raises:
            UserError, FailureError: as the supervisor raised them, or it is gone.
        """
        message = self._next()
        data = self._file.read(message["num_bytes"])
        if len(data) < message["num_bytes"]:
            raise NoAnswerError("the cluster's supervisor closed the connection in the middle of an answer")
        return message, data

    def ask_all(self, request: Message) -> Iterator[Message]:
        """The lines of an answer that an empty one ends, which is left out: one that breaks off is not whole.

        Args:
            request: with `op`.

        Raises:
            UserError, FailureError: as the supervisor raised them.
            NoAnswerError: it breaks off.
        """
        answer = self.ask(request)
        while answer:
            yield answer
            answer = self._next()

    def lines(self) -> Iterator[Message]:
        """The further lines of an answer that goes on, until the supervisor closes the connection."""
        while True:
            try:
                line = self._file.readline()
            except ConnectionError:  # as an end that it did not announce
                return
            if not line.endswith(b"\n"):
                return
            yield _checked(json.loads(line, object_hook=Line))

    def _next(self) -> Message:
        try:
            line = self._file.readline()
        except TimeoutError as error:
            raise NoAnswerError("the cluster's supervisor did not answer in time") from error
        except ConnectionError as error:
            raise NoAnswerError(f"the cluster's supervisor does not answer ({error.strerror or error})") from error
        if not line.endswith(b"\n"):
            raise NoAnswerError("the cluster's supervisor closed the connection before all was said: it may have ended")
        return _checked(json.loads(line, object_hook=Line))


def _checked(answer: Message) -> Message:
    error = answer.get("error")
    if error is not None:
        raise {"user": UserError, "failure": FailureError}[error["kind"]](error["message"])
    return answer


def error_answer(error: UserError | FailureError) -> Message:
    """The line that makes the client raise the same."""
    return {"error": {"kind": "user" if isinstance(error, UserError) else "failure", "message": str(error)}}
