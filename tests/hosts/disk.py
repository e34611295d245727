"""The disk of a test host: a tmpfs with what the host writes; below it the machine's root is seen, never changed."""

import os
import re
import sys
from pathlib import Path

from tests.hosts.commands import command

HIDDEN = ("root", "home", "tmp", "var/tmp", "etc/ssh")  # empty on a host: keys, state and secrets of the machine's user
MIB = 2**20


class Disk:
    """One host's disk.

    Args:
        folder: where it is mounted on the machine; holds upper/, work/ and root/.
        size_mib: its size.
    """

    def __init__(self, folder: Path, size_mib: int):
        self.folder, self.size_mib = folder, size_mib
        self.upper = folder / "upper"

    def make(self, name: str, hosts: dict[str, str], authorized_key: str | None) -> None:
        """A fresh disk.

        Args:
            name: the host's name.
            hosts: name to address, for /etc/hosts.
            authorized_key: who may come in by ssh as root; None for a machine without sshd.
        """
        self.folder.mkdir()
        command("mount", "-t", "tmpfs", "-o", f"mode=755,size={self.size_mib}m", "tmpfs", str(self.folder))
        for part in ("upper", "work", "root"):
            (self.folder / part).mkdir()
        for folder in HIDDEN:
            path = self.upper / folder
            path.mkdir(parents=True)
            os.setxattr(path, "trusted.overlay.opaque", b"y")
        (self.upper / "root").chmod(0o700)
        for folder in ("tmp", "var/tmp"):
            (self.upper / folder).chmod(0o1777)
        (self.upper / "etc/hostname").write_text(f"{name}\n")
        lines = ["127.0.0.1 localhost", *(f"{address} {host}" for host, address in hosts.items())]
        (self.upper / "etc/hosts").write_text("".join(f"{line}\n" for line in lines))
        if authorized_key is not None:
            self._let_in(authorized_key)

    def _let_in(self, authorized_key: str) -> None:
        """The sshd_config of Debian, as far as it concerns root with a key."""
        shadow = self.upper / "etc/shadow"
        shadow.touch(0o600)
        accounts = Path("/etc/shadow").read_text()
        shadow.write_text(re.sub(r"(?m)^root:[^:]*:", "root:*:", accounts))  # "!" would lock keys out as well
        ssh = self.upper / "root/.ssh"
        ssh.mkdir(0o700)
        (ssh / "authorized_keys").write_text(authorized_key)
        key = self.upper / "etc/ssh/ssh_host_ed25519_key"
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key))
        (self.upper / "etc/ssh/sshd_config").write_text(
            "HostKey /etc/ssh/ssh_host_ed25519_key\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nUsePAM no\nPidFile /run/sshd.pid\nAcceptEnv LANG LC_*\n"
            "Subsystem sftp internal-sftp\nInclude /etc/ssh/sshd_config.d/*.conf\n"
        )

    def fill(self, leave: int) -> None:
        """Leaves `leave` bytes free, without a byte of memory: the disk shrinks to what is used."""
        status = os.statvfs(self.folder)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        self._resize(str(max(used + leave, status.f_frsize)))  # 0 would mean no limit

    def free(self) -> None:
        self._resize(f"{self.size_mib}m")

    def _resize(self, size: str) -> None:
        command("mount", "-o", f"remount,size={size}", str(self.folder))


def environments() -> list[Path]:
    """The folders that Python needs on a host: the environment that runs this, those beside it, their interpreters."""
    prefix = Path(sys.prefix)
    tree = prefix.parent
    found = [tree if (tree / "pyproject.toml").exists() else prefix]  # `make setup` makes them inside the project
    for config in [prefix / "pyvenv.cfg", *tree.glob(".venv-*/pyvenv.cfg")]:
        if config.exists():
            lines = (line.partition("=") for line in config.read_text().splitlines())
            home = next(value.strip() for key, _, value in lines if key.strip() == "home")
            found.append(Path(home).resolve().parent)
    return found


def to_share(folders: list[Path]) -> list[Path]:
    """Those of `folders` that a host would not see by itself: under a hidden folder, or on another file system."""
    root = Path("/").stat().st_dev
    hidden = [Path("/") / folder for folder in (*HIDDEN, "run")]
    unseen = {f for f in folders if f.stat().st_dev != root or any(f.is_relative_to(h) for h in hidden)}
    return sorted(f for f in unseen if not any(f != g and f.is_relative_to(g) for g in unseen))


def unmount_all_under(folder: Path) -> None:
    """Unmounts whatever is mounted in a folder of the machine, the innermost first."""
    mounts = [Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed(mounts):
        if mount.is_relative_to(folder):
            command("umount", str(mount))
