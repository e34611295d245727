"""One machine that ssh reaches: what is there, and what we ask of it."""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.container import Container, pull
from cluster.errors import ClusterError
from cluster.host_environment import host_python
from cluster.host_facts import MachineFacts
from cluster.machine import MachineUp, Request, ray_environment
from cluster.place_code import Code
from cluster.processes import MARKER
from cluster.provider import Say
from cluster.spec import ClusterSpec
from cluster.ssh import CommandError, Ssh, SshError, let_go

CHECK_TIMEOUT_S = 90.0
START_TIMEOUT_S = 150.0
REMOVE_TIMEOUT_S = 60.0
PURGE_TIMEOUT_S = 600.0  # years of checkpoints
SETTLE_TIMEOUT_S = 30.0
REMOVE_TRIES = 4
REMOVE_PAUSE_S = 2.0
SENT_SOURCES = Path(__file__).parent


class RemoteMachine:
    """A machine of a cluster.

    Args:
        ssh: the way to it.
        spec: of the cluster.
    """

    def __init__(self, ssh: Ssh, spec: ClusterSpec):
        self.ssh = ssh
        self.spec = spec
        self.host = ssh.target.label
        self._facts: MachineFacts | None = None
        self._failure: SshError | None = None
        self._python = ""
        self._cleaned = False  # of what was there when we looked
        self._starting: subprocess.Popen[bytes] | None = None

    @property
    def known(self) -> MachineFacts:
        """What `look` has found."""
        assert self._facts is not None
        return self._facts

    @property
    def folder(self) -> Path:
        """The cluster's folder there."""
        return Path(self.known.home) / "clusters" / self.spec.name

    def look(self) -> MachineFacts:
        """Looks at it, once: a host that does not answer costs the waiting only once, too.

        Raises:
            SshError: it cannot be reached, or has no python3 that could look.
        """
        if self._failure is not None:
            raise self._failure
        if self._facts is None:
            script = (SENT_SOURCES / "host_check.py").read_bytes()
            command = ["python3", "-", self.spec.name, self.host, self.spec.python or "", MARKER]
            try:
                answer = self.ssh.run(command, script, CHECK_TIMEOUT_S)
            except SshError as error:
                self._failure = error
                raise
            self._facts = MachineFacts.from_json(self.host, json.loads(answer), time.time())
        return self._facts

    def fetch_image(self, say: Say) -> MachineFacts:
        """What `look` has found, with the Python of the cluster's image; the image is fetched if it is not there.

        Raises:
            SshError: it cannot be fetched.
        """
        image, container = self.spec.image, self.known.container
        if image is not None and container is not None and not container["has_image"]:
            say(f"{self.host}: fetching image {image}; minutes, this once")
            pull(self.ssh, container["engine"], image)
            self._facts = None
        return self.look()

    def prepare(self, code: Code, say: Say) -> None:
        """Gives it its Python, and ends what an earlier cluster of this name has left.

        Raises:
            SshError: the Python could not be made.
        """
        self._python = self._host_python(say)
        if self.known.cluster is not None and not self._cleaned:
            say(f"{self.host}: cleaning up what an earlier cluster {self.spec.name!r} left")
            for line in self._remove_surely(code):
                say(f"{self.host}: {line}")

    def _host_python(self, say: Say) -> str:
        if self.spec.image is not None:
            return "python3"  # in the container, whose PATH decides
        return host_python(self.ssh, self.known, self.spec.python, self.spec.jax_hardware.kind, say)

    def start(self, code: Code, *arguments: str) -> subprocess.Popen[bytes]:
        """Puts our code there and goes on with `python ARGUMENTS`, which reads what is written next."""
        if not self._python:
            self.look()
            self._python = self._host_python(lambda _: None)
        script = (SENT_SOURCES / "place_code.py").read_text()
        header = {
            "home": self.known.home,
            "cluster": self.spec.name,
            "digest": code.digest,
            "num_bytes": len(code.archive),
            "environment": ray_environment(self.folder, self.known.address),
            "then": arguments,
        }
        command = ["-c", script]
        container = self._container()
        process = self.ssh.start(container.command(command) if container else [self._python, *command])
        _write(process, json.dumps(header).encode() + b"\n" + code.archive)
        return process

    def _container(self) -> Container | None:
        return None if self.spec.image is None else Container.of(self.spec, self.known)

    def begin(self, code: Code, request: Request, token: str) -> None:
        """Orders it to start its holder; the token goes over the connection, never into a command line."""
        self._starting = self.start(code, "-m", "cluster.on_machine", "start")
        _write(self._starting, _line({"name": self.spec.name, "request": request.to_json(), "token": token}))

    def join(self, gcs_address: str) -> MachineUp:
        """Tells it where the head is, and waits until it is up."""
        assert self._starting is not None
        _write(self._starting, _line(gcs_address))
        return self.wait_until_up()

    def wait_until_up(self) -> MachineUp:
        """Waits for the answer to `begin`; the machine waits for `settle`.

        Raises:
            SshError: why it did not start.
        """
        process = self._starting
        assert process is not None and process.stdout is not None
        limit = threading.Timer(START_TIMEOUT_S, process.kill)
        limit.daemon = True  # an interrupt may come before it can be cancelled
        limit.start()
        try:
            answer = process.stdout.readline()  # its input stays open: see `cluster.on_machine`
            if answer:
                return MachineUp.from_json(json.loads(answer))
            _, errors = process.communicate()
        finally:
            limit.cancel()
        self._starting = None
        self.ssh.check(process, errors)
        raise ClusterError(f"host {self.host}: was not up after {START_TIMEOUT_S:g} s")

    def settle(self) -> None:
        """Tells it that the whole cluster is up, and so to keep what it has started.

        Raises:
            SshError: the connection was lost before, and so it has removed it all.
        """
        process, self._starting = self._starting, None
        if process is not None:
            self.ssh.finish(process, "the start", _line("up"), SETTLE_TIMEOUT_S)

    def abandon(self) -> None:
        """Takes back an order to start: what it has begun ends there."""
        process, self._starting = self._starting, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, or an interrupt came when it was being closed
            process.stdin.close()
        try:
            process.wait(REMOVE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            let_go(process)

    def take_back(self, code: Code) -> None:
        """Undoes what was done since `look`, as far as the machine can be reached; else it does so itself."""
        if self._python:
            with contextlib.suppress(SshError):
                self.remove(code, purge=False)

    def other_clusters(self) -> tuple[str, ...]:
        """Names of other clusters that are up in our folder there, or are being brought up, as it is now.

        Raises:
            SshError: it cannot be reached.
        """
        self._facts = self._failure = None
        try:
            return self.look().others
        except SshError:
            self._failure = None  # only `up` goes by that: `remove` is to try again, and to say that it cannot
            raise

    def remove(self, code: Code, purge: bool) -> list[str]:
        """Ends what the cluster has there, and with `purge` removes our whole folder, unless another cluster uses it.

        Raises:
            SshError: it cannot be reached.
        """
        if self._failure is not None:
            return []  # it did not answer when `up` looked at it, so nothing was begun there
        self.abandon()
        forced = self._remove_surely(code) if self.look().cluster is not None or self._python else []
        self._cleaned = True
        if purge:
            forced += self._purge()
        return [f"{self.host}: {line}" for line in forced]

    def _purge(self) -> list[str]:
        """Removes our whole folder, and those above it that nothing of ours is in any more."""
        if others := self.other_clusters():  # it has come up only now: who has asked was told of others before
            return [f"{in_use(self.known.home, others)}, so all of it stays"]
        folder = Path(self.known.home)
        self.ssh.run(["rm", "-rf", "--", str(folder)], timeout_s=PURGE_TIMEOUT_S)
        for parent in (folder.parent, folder.parent.parent):
            with contextlib.suppress(CommandError):  # of a client's, or of a host by another name
                self.ssh.run(["rmdir", "--", str(parent)])
        return []

    def _remove_surely(self, code: Code) -> list[str]:
        """What was begun there may be removing itself at this moment, with the code that we have just put beside it."""
        for _ in range(REMOVE_TRIES - 1):
            with contextlib.suppress(CommandError):
                return self._remove(code)
            time.sleep(REMOVE_PAUSE_S)
        return self._remove(code)

    def _remove(self, code: Code) -> list[str]:
        process = self.start(code, "-m", "cluster.on_machine", "remove")
        order = _line({"name": self.spec.name})
        forced: list[str] = json.loads(self.ssh.finish(process, "the cleaning up", order, REMOVE_TIMEOUT_S))
        if container := self._container():
            container.remove(self.ssh)
        return forced


def in_use(folder: str, others: Sequence[str]) -> str:
    """That other clusters use our folder on a machine."""
    return f"cluster {others[0]} uses {folder}" if len(others) == 1 else f"clusters {', '.join(others)} use {folder}"


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Writes to its input; if it has ended, whoever reads its answer says why."""
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        process.stdin.flush()
    except BrokenPipeError:
        pass
