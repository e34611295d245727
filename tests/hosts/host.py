"""One test host: a machine of its own as far as Linux namespaces go, with a disk that outlives a power cut."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.commands import PATH, command, end_all_in, init_pid, pids_in, wait_until
from tests.hosts.disk import Disk
from tests.hosts.network import Network

BOOT = Path(__file__).with_name("boot.sh")
CLOCK_SOURCE = Path(__file__).with_name("clock.c")
SSHD_CONFIG = "/etc/ssh/sshd_config"
PRELOAD = "/etc/ld.so.preload"
CLOCK = Path("/usr/local/lib/wrong-clock.so")


@dataclass(frozen=True)
class Process:
    """What runs in a host.

    Attributes:
        pid: the machine's.
        argv: its command line.
    """

    pid: int
    argv: tuple[str, ...]


class Host:
    """Made and removed by `TestHosts`.

    Args:
        network: of its set.
        name: its host name.
        index: last part of its address.
        folder: on the machine; its disk is mounted there, its log lies beside it.
        disk_mib: size of its disk.
        share: folders of the machine that it sees at their own path, read-only.
        bucket: one that it may write, as all others; None: there is none.
    """

    def __init__(
        self, network: Network, name: str, index: int, folder: Path, disk_mib: int, share: Sequence[Path],
        bucket: Path | None = None,
    ):  # fmt: skip
        self.name, self.address = name, network.address(index)
        self.namespace = network.namespace(name)
        self.disk = Disk(folder, disk_mib)
        self._network, self._index, self._share = network, index, [str(path) for path in share]
        self._share += [f"rw:{bucket}"] if bucket is not None else []
        self._log = folder.with_suffix(".log")

    # Power

    def start(self) -> None:
        """Switches it on and does not wait."""
        self._network.add_host(self.name, self._index)
        self._network.plug(self._index)
        argv = ["setsid", "--fork", "nsenter", f"--net=/run/netns/{self.namespace}"]
        argv += ["unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"]
        argv += ["bash", str(BOOT), self.name, str(self.disk.folder), *self._share]
        with self._log.open("w") as log:
            environment = {"PATH": PATH, "HOME": "/root"}
            subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, check=True, cwd="/")

    def wait_ready(self) -> None:
        """Waits until it has booted; its sshd listens by then.

        Raises:
            TimeoutError: it has not; with the end of its log.
        """
        try:
            wait_until(self._ready, f"{self.name} boots")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; its log ends: {self._log.read_text()[-1000:]}") from None

    def _ready(self) -> bool:
        init = init_pid(self.namespace)
        if init is None:
            return False
        try:  # until it has changed its root, this is the machine's
            own = Path(f"/proc/{init}/root/etc/hostname").read_text().strip() == self.name
            return own and Path(f"/proc/{init}/root/run/ready").exists()
        except (FileNotFoundError, ProcessLookupError):
            return False

    def boot(self) -> None:
        """Switches it on, with the disk as it was left, and waits until it is ready."""
        self.start()
        self.wait_ready()

    def kill(self) -> None:
        """A power cut: all processes end at once, and not a packet says so. What they wrote is on the disk."""
        if self.is_on():
            self._network.unplug(self._index)
        end_all_in(self.namespace)
        self._network.remove_host(self.name, self._index)

    def is_on(self) -> bool:
        return init_pid(self.namespace) is not None

    # Network

    def cut(self) -> None:
        """Takes it off the network in silence: its link stays up, no packet passes, nothing is refused."""
        self._network.unplug(self._index)

    def heal(self) -> None:
        self._network.plug(self._index)

    def loss(self, percent: float) -> None:
        """Drops that share of the packets that come in. (Those that go out are not dropped: netfilter would tell the
        sender, which no network does.) 0 ends it."""
        self._network.iptables(self.namespace, "-t mangle -F PREROUTING")
        if percent:
            rule = f"-t mangle -A PREROUTING -i eth0 -m statistic --mode random --probability {percent / 100} -j DROP"
            self._network.iptables(self.namespace, rule)

    def slow_link(self, other: "Host", mbit: float) -> None:
        """What it sends to one other host passes at so many Mbit/s; `restore` ends it."""
        self._network.slow(self.namespace, other.address, mbit)

    # Inside

    def init(self) -> int:
        """The machine's pid of its PID 1.

        Raises:
            RuntimeError: it is off.
        """
        if pid := init_pid(self.namespace):
            return pid
        raise RuntimeError(f"{self.name} is off")

    def path(self, path: str | Path) -> Path:
        """A file of the host as the machine can open it, until the host goes off."""
        return Path(f"/proc/{self.init()}/root") / Path(path).relative_to("/")

    def enter(self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str = "/root") -> list[str]:
        """The command that runs `argv` in the host, past its sshd; it ends when the command is ended."""
        variables = {"HOME": "/root", "USER": "root", "PATH": PATH, "LANG": "C.UTF-8", **(env or {})}
        return [
            *("nsenter", f"--target={self.init()}", "--mount", "--uts", "--ipc", "--net", "--pid", "--"),
            *("env", "-i", f"--chdir={cwd}", *(f"{name}={value}" for name, value in variables.items())),
            *("setpriv", "--pdeathsig", "KILL", *argv),
        ]

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/root",
        check: bool = True,
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the host by the back door, which no cut and no stopped sshd closes.

        Raises:
            RuntimeError: `check`, and it failed; with what it wrote.
        """
        entered = self.enter(argv, env, cwd)
        done = subprocess.run(entered, capture_output=True, text=True, timeout=timeout_s, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{argv} on {self.name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def processes(self) -> list[Process]:
        """What runs in it besides PID 1 and sshd with its sessions: after a teardown, orphans."""
        init = self.init()
        found = []
        for pid in pids_in("pid", Path(f"/proc/{init}/ns/pid").stat().st_ino):
            try:
                program = Path(os.readlink(f"/proc/{pid}/exe")).name
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if pid != init and not program.startswith("sshd"):
                found.append(Process(pid, tuple(word.decode(errors="replace") for word in words)))
        return found

    # What an administrator, or bad luck, changes

    def set_hosts_line(self, line: str) -> None:
        """Replaces what /etc/hosts says about the host's own name, such as Debian's "127.0.1.1 NAME"."""
        file = self.path("/etc/hosts")
        kept = [old for old in file.read_text().splitlines() if self.name not in old.split()[1:]]
        file.write_text("".join(f"{text}\n" for text in [line, *kept]))

    def fill_disk(self, leave: int = 0) -> None:
        """Leaves `leave` bytes free on its disk; /dev/shm is no part of it."""
        self.disk.fill(leave)

    def free_disk(self) -> None:
        self.disk.free()

    def stop_sshd(self) -> None:
        """Ends the listener; sessions that are open stay, as with systemd."""
        if self._sshd_runs():
            self.run(["sh", "-c", "kill $(cat /run/sshd.pid)"])
            wait_until(lambda: not self._sshd_runs(), f"sshd of {self.name} ends")

    def start_sshd(self) -> None:
        if not self._sshd_runs():
            self.run(["sh", "-c", '"$(command -v sshd)" -f ' + SSHD_CONFIG])
            wait_until(self._sshd_runs, f"sshd of {self.name} listens")

    def _sshd_runs(self) -> bool:
        return self.path("/run/sshd.pid").exists()  # sshd writes it when it listens, and removes it when it ends

    def new_host_key(self) -> None:
        """As after a reinstallation under the same address."""
        key = "/etc/ssh/ssh_host_ed25519_key"
        self.stop_sshd()
        self.run(["sh", "-c", f"rm {key} {key}.pub && ssh-keygen -q -t ed25519 -N '' -C '' -f {key}"])
        self.start_sshd()

    def set_clock(self, offset_s: int) -> None:
        """Its wall clock is wrong by that much, for every process that starts from now on; 0 mends it.

        The host's loader puts clock.c before every program; see there what it does and what not.

        Raises:
            RuntimeError: no C compiler.
        """
        preload, library = self.path(PRELOAD), self.path(CLOCK)
        preload.unlink(missing_ok=True)
        library.unlink(missing_ok=True)  # never written over: what runs has it mapped
        if offset_s:
            argv = ["cc", "-shared", "-fPIC", "-O2", f"-DOFFSET_S={offset_s}", str(CLOCK_SOURCE)]
            command(*argv, "-o", str(library), "-ldl")
            preload.write_text(f"{CLOCK}\n")
        if self.path(SSHD_CONFIG).exists():
            self.stop_sshd()
            self.start_sshd()

    def restore(self) -> None:
        """Takes back everything above; a host that is off is booted."""
        if not self.is_on():
            self.boot()
        self.heal()
        self.loss(0)
        self._network.even(self.namespace)
        self.free_disk()
        self.set_hosts_line(f"{self.address} {self.name}")
        if self.path(PRELOAD).exists():
            self.set_clock(0)
        if self.path(SSHD_CONFIG).exists():
            self.start_sshd()
