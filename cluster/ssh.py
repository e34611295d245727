"""Commands on another machine, through OpenSSH: the user's own ssh config, keys, agent and jump hosts hold.

Every word goes through `shlex.quote`, so nothing that a file or a person says reaches a shell as more than a word; and
every path through `_word`, because ssh reads its own options with quotes, `%h` and `${HOME}`.
Connections to one host share one (ControlMaster), which ends with the `Ssh` that opened it.
"""

import contextlib
import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cluster.access import Access, Target
from cluster.errors import ClusterError
from cluster.record import home

CONNECT_TIMEOUT_S = 10
SSH_FAILED = 255  # ssh's own exit code; a command that ends with it cannot be told from that


class SshError(ClusterError):
    """A host that could not be reached, or a command there that failed."""


class CommandError(SshError):
    """A command that has failed on a host that was reached."""


class Ssh:
    """One host, as ssh reaches it.

    Args:
        target: of this host.
        access: with the user and key for all hosts.
        cluster: whose known hosts are asked; new keys are accepted once and kept there.
        run_folder: a short folder, ours alone, for the shared connection's socket.
    """

    def __init__(self, target: Target, access: Access, cluster: str, run_folder: Path):
        self.target = target
        self.known_hosts = home() / "known_hosts" / cluster
        # Short, and another for each host: through a name that two hosts share, one would get what is for the other.
        self._control = run_folder / hashlib.sha256(target.label.encode()).hexdigest()[:16]
        self._options = self._make_options(access)

    def _make_options(self, access: Access) -> list[str]:
        user = self.target.user or access.user
        own = Path("~/.ssh/known_hosts").expanduser()
        settings = {
            "BatchMode": "yes",
            "ConnectTimeout": CONNECT_TIMEOUT_S,
            "ServerAliveInterval": 5,
            "ServerAliveCountMax": 4,
            "StrictHostKeyChecking": "accept-new",
            "UserKnownHostsFile": f"{_word(self.known_hosts)} {_word(own)}",
            "ControlPath": _word(self._control),
            "ForwardX11": "no",
            "LogLevel": "ERROR",
        }
        if access.identity_file is not None:
            identity = os.path.abspath(os.path.expanduser(access.identity_file))
            settings |= {"IdentityFile": _word(Path(identity)), "IdentitiesOnly": "yes"}
        if self.target.address is not None:
            settings |= {"HostName": self.target.address, "HostKeyAlias": self.target.name}
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        if user is not None:
            options += ["-l", user]
        if self.target.port is not None:
            options += ["-p", str(self.target.port)]
        return options

    def run(self, command: Sequence[str], data: bytes = b"", timeout_s: float = 60.0) -> bytes:
        """Runs a command there and returns its output.

        Raises:
            SshError: it failed, or did not end in time; with its last lines, or with what to do about the connection.
        """
        return self.finish(self.start(command), command[0], data, timeout_s)

    def finish(self, process: subprocess.Popen[bytes], what: str, data: bytes, timeout_s: float) -> bytes:
        """Gives a started command its last input and returns its output; raises as `run` does.

        Args:
            process: from `start`.
            what: it is called in an error.
            data: the last of its input.
            timeout_s: how long it may take from now on.
        """
        try:
            output, errors = process.communicate(data, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            let_go(process)
            raise SshError(f"host {self.target.label}: {what} did not end within {timeout_s:g} s") from error
        self.check(process, errors)
        return output

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Starts a command there, with pipes for all three streams; ends with the connection."""
        self.known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return subprocess.Popen(
            ["ssh", *self._options, "-o", "ControlMaster=auto", "-o", "ControlPersist=30", "--", self.target.name,
             shlex.join(command)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def check(self, process: subprocess.Popen[bytes], errors: bytes) -> None:
        """Raises SshError if an ended command failed."""
        text = errors.decode(errors="replace").strip()
        if process.returncode == SSH_FAILED:
            raise SshError(f"host {self.target.label}: {self._advice(text)}")
        if process.returncode:
            last = "\n".join("  " + line for line in text.splitlines()[-15:])
            raise CommandError(f"host {self.target.label}: exit code {process.returncode}:\n{last}")

    def forward(self, here: Path, there: str, log: Path) -> None:
        """Opens a lasting connection in the background, with a Unix socket here that leads to one there.

        Raises:
            SshError: the host cannot be reached.
        """
        self.known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        log.unlink(missing_ok=True)
        done = subprocess.run(
            ["ssh", *self._options, "-o", "ControlMaster=yes", "-o", "ControlPersist=no",
             "-o", "ExitOnForwardFailure=yes", "-o", "StreamLocalBindUnlink=yes", "-o", "StreamLocalBindMask=0177",
             "-E", str(log), "-f", "-N", "-L", f"{here}:{there}", "--", self.target.name],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode:
            text = log.read_text(errors="replace") if log.exists() else ""
            raise SshError(f"host {self.target.label}: {self._advice(text.strip())}")

    def forget_host_key(self) -> None:
        """A new machine of an old name is expected to have another key."""
        if self.known_hosts.exists():
            words = ["ssh-keygen", "-q", "-R", self.target.name, "-f", str(self.known_hosts)]
            subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    def connected(self) -> bool:
        """Whether the shared connection is open."""
        return self._control.exists() and self._ask_master("check") == 0

    def close(self) -> None:
        """Ends the shared connection."""
        if self._control.exists():
            self._ask_master("exit")
            with contextlib.suppress(FileNotFoundError):
                self._control.unlink()

    def _ask_master(self, order: str) -> int:
        return subprocess.run(
            ["ssh", *self._options, "-O", order, "--", self.target.name],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=20,
        ).returncode  # fmt: skip

    def _advice(self, text: str) -> str:
        """What ssh said, and what a person can do about it."""
        last = (text.splitlines() or ["ssh ended without a word"])[-1]
        advice = {
            "Host key verification failed": "its host key is not the one it had before: if the machine was set up "
            f"anew, `{self._forget_key(text)}`; else somebody else answers there",
            "Permission denied": "it does not accept our key: `ssh-add`, or `identity_file` and `user` in the cluster "
            "file",
            "Connection refused": "no sshd answers on that port",
            "timed out": "it does not answer: is it up, and is the way to it open?",
            "No route to host": "there is no way to it: is it up?",
            "Could not resolve": "its name is not known here: neither ~/.ssh/config nor the name service has it",
        }
        hint = next((words for key, words in advice.items() if key in text), None)
        return f"{hint} ({last})" if hint else last

    def _forget_key(self, text: str) -> str:
        """The command that removes the old key, from the file and under the name that ssh has found it."""
        name = re.search(r"[Hh]ost key for (\S+) has changed", text)
        file = re.search(r"Offending \S+ key in (.+):\d+", text)
        words = (name[1] if name else self.target.name, "-f", file[1] if file else str(self.known_hosts))
        return shlex.join(["ssh-keygen", "-R", *words])


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Ends our side of a started command, and waits for nothing.

    Its pipes may be open on: the shared connection holds them until the other side has ended, too.
    """
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _word(path: Path) -> str:
    """A path as a value in ssh's configuration that means just this path.

    Raises:
        SshError: there is no way to say it: nothing keeps ssh from replacing `${`, and a line ends where it ends.
    """
    text = str(path)
    if "${" in text or not text.isprintable():
        raise SshError(f"ssh cannot be told of {text!r}, which has ${{ or an unprintable character: use another path")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
