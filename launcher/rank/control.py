"""The descriptor between a rank and its agent, and the lease: the rank's promise to end when nobody holds it.

Messages are JSON objects, one a line, on a descriptor of their own (gloo writes to standard output). A thread reads
them, whatever the main thread does; it ends the whole process group when the agent's end is closed or when nothing
has come for `lease_s`.
"""

import contextlib
import ctypes
import itertools
import json
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]

EXIT_LEASE_LOST = 70  # EX_SOFTWARE: nobody held this process any more
ASK_TIMEOUT_S = 1200.0  # a question may be a copy of many gigabytes


class Control:
    """The rank's end of the descriptor.

    Args:
        descriptor: a connected stream socket.
        lease_s: the longest silence of the agent that this process survives, in seconds.
    """

    def __init__(self, descriptor: int, lease_s: float):
        self._socket = socket.socket(fileno=descriptor)
        self._socket.settimeout(lease_s)
        self._lease_s = lease_s
        self._send_lock = threading.Lock()
        self._received: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._asked: dict[int, queue.SimpleQueue[Message]] = {}
        self._profile: Message | None = None
        self._save_lock = threading.Lock()
        self._saves: list[int] = []  # asked for when nobody took them yet
        self._take_save: Callable[[int], None] | None = None
        threading.Thread(target=self._receive, name="lease", daemon=True).start()

    def send(self, message: Message) -> None:
        """Sends one message; a closed descriptor is the lease thread's business, not the caller's."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._send_lock:
            try:
                self._socket.sendall(data)
            except OSError:
                end_process_group("the agent closed the control descriptor")

    def receive(self) -> Message:
        """Waits for the next message that is not a renewal of the lease."""
        return self._received.get()

    def ask(self, question: Message) -> Message:
        """Puts a question to the agent and waits for its answer; from any thread.

        Raises:
            TimeoutError: none came within ASK_TIMEOUT_S.
        """
        number = next(self._numbers)
        answers = self._asked[number] = queue.SimpleQueue()
        self.send({**question, "type": "ask", "number": number})
        try:
            return answers.get(timeout=ASK_TIMEOUT_S)
        except queue.Empty:
            raise TimeoutError(f"the agent did not answer {question['op']!r} within {ASK_TIMEOUT_S:g} s") from None
        finally:
            del self._asked[number]

    def waiting(self) -> bool:
        """Whether a message is there already."""
        return not self._received.empty()

    def take_profile(self) -> Message | None:
        """The profile that was last asked for, once; None: none since."""
        asked, self._profile = self._profile, None
        return asked

    def give_saves_to(self, take: Callable[[int], None]) -> None:
        """From now on, and for what has come before, `take` is given the number of each checkpoint that is asked for.

        It is called in the thread that holds the lease, and must return at once.
        """
        with self._save_lock:  # while it is held, so that none overtakes another
            self._take_save = take
            for number in self._saves:
                take(number)
            self._saves.clear()

    def _hear_save(self, number: int) -> None:
        with self._save_lock:
            if self._take_save is None:
                self._saves.append(number)
            else:
                self._take_save(number)

    def _receive(self) -> None:
        buffer = b""
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                end_process_group(f"no contact with the agent for {self._lease_s:g} s: the lease has run out")
            except OSError as error:
                end_process_group(f"the control descriptor failed: {error}")
            if not data:
                end_process_group("the agent closed the control descriptor: it ended, or it ended this rank")
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if message["type"] == "answer":
                    if asked := self._asked.get(message["number"]):  # else nobody waits any more
                        asked.put(message["answer"])
                elif message["type"] == "profile":
                    self._profile = message
                elif message["type"] == "save":
                    self._hear_save(message["number"])
                elif message["type"] != "lease":
                    self._received.put(message)


def end_process_group(why: str) -> None:
    """Ends this process and its children at once, past every atexit handler (JAX's waits for its peers there)."""
    with contextlib.suppress(OSError, ValueError):  # nobody may read any more
        os.write(sys.stderr.fileno(), f"spmd-launch: rank process {os.getpid()} ends: {why}\n".encode())
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(EXIT_LEASE_LOST)


def die_with_parent() -> None:
    """Asks the kernel (Linux) to end this process, frozen or not, with the agent's thread that started it."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
