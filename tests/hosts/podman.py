"""Podman on test hosts: real containers there, of an image that needs no registry.

The image has no more than the links that a merged /usr has; the machine's /usr and Python environments are mounted into
each container by the host's containers.conf, as an administrator may do it. A host gets the machine's control groups.
"""

import io
import shutil
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

from tests.hosts.commands import PATH
from tests.hosts.disk import environments
from tests.hosts.host import Host

IMAGE = "localhost/spmd-launch-test:1"
MQUEUE = "/dev/mqueue"  # systemd mounts it on a real host; a container with the host's IPC has it too
GROUP = "users"  # that a user is in besides his own
CGROUPS = Path("/sys/fs/cgroup")
STORAGE = """[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"""  # a host's disk is an overlay already, over which the kernel puts no other


def missing() -> str | None:
    """Why test hosts cannot have podman, in words; None where it is installed."""
    absent = [program for program in ("podman", "crun") if shutil.which(program, path=PATH) is None]
    return f"not installed: {' '.join(absent)} (`apt-get install podman crun`)" if absent else None


def give_podman(host: Host, python: str = sys.executable) -> None:
    """Makes podman work on a host that is on; it has no image yet.

    Args:
        host: the host.
        python: interpreter that is `python3` in its containers.

    Raises:
        RuntimeError: a container does not run there; with podman's words.
    """
    for point, kind, options in _control_groups():
        host.run(["mkdir", "-p", point])
        host.run(["mount", "-t", kind, *(["-o", options] if options else []), kind, point])
    host.run(["mkdir", "-p", MQUEUE])
    host.run(["mount", "-t", "mqueue", "mqueue", MQUEUE])
    folders = {Path("/usr"), *environments(), Path(python).parents[1]}
    outer = sorted(f for f in folders if not any(f != g and f.is_relative_to(g) for g in folders))
    volumes = ", ".join(f'"{folder}:{folder}:ro"' for folder in outer)
    config = host.path("/etc/containers")
    config.mkdir(exist_ok=True)
    (config / "storage.conf").write_text(STORAGE)
    (config / "containers.conf").write_text(f"[containers]\nvolumes = [{volumes}]\n")


def give_user(host: Host, user: str) -> None:
    """Makes a user with podman of his own, without root, whom the set's key lets in; a host that has podman already.

    Raises:
        RuntimeError: with the words of what failed.
    """
    # With a range of further user ids, as Debian's useradd does it.
    host.run(["useradd", "--create-home", "--shell", "/bin/bash", "--groups", GROUP, user])
    host.run(["usermod", "--password", "*", user])  # sshd lets no locked account in
    home = host.path(f"/home/{user}")
    for name, text in {
        ".ssh/authorized_keys": host.path("/root/.ssh/authorized_keys").read_text(),
        ".config/containers/storage.conf": '[storage]\ndriver = "vfs"\n',
    }.items():
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text(text)
    host.run(["chown", "-R", f"{user}:", f"/home/{user}"])
    host.run(["chmod", "711", "/root"])  # an interpreter may lie below it


def take_user(host: Host, user: str) -> None:
    """Removes him with all that he has, podman's own process among it."""
    host.run(["pkill", "--signal", "KILL", "--uid", user], check=False)
    host.run(["userdel", "--remove", "--force", user])
    host.run(["chmod", "700", "/root"])


def take_podman(host: Host) -> None:
    """Takes back what `give_podman` and `give_image` have done to a host."""
    for folder in ("/var/lib/containers/storage", str(CGROUPS), MQUEUE):
        host.run(["umount", "--recursive", folder], check=False)  # a host that has booted has none
    host.run(["rm", "-rf", "/var/lib/containers", "/etc/containers/storage.conf", "/etc/containers/containers.conf"])


def give_image(host: Host, name: str = IMAGE, python: str = sys.executable, user: str = "root") -> None:
    """Gives a user of it the image, whose `python3` is that interpreter's environment.

    Raises:
        RuntimeError: with podman's words.
    """
    tar = host.path("/run/image.tar")
    tar.write_bytes(_links())
    path = f"ENV PATH={Path(python).parent}:/usr/bin:/bin"
    home = "/root" if user == "root" else f"/home/{user}"
    as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", f"HOME={home}", "USER=" + user]
    host.run([*as_user, "podman", "import", "--change", path, "/run/image.tar", name])
    sharing = ["--network", "host", "--pid", "host", "--ipc", "host", "--ulimit", "host"]
    host.run([*as_user, "podman", "run", "--rm", *sharing, name, "python3", "-V"])


def containers(host: Host) -> list[str]:
    """Names of all containers on a host, running or not."""
    return host.run(["podman", "ps", "--all", "--format", "{{.Names}}"]).stdout.split()


def remove_empty_groups() -> None:
    """What podman leaves in the machine's control groups, most of all when a host's power is cut."""
    for parent in CGROUPS.glob("**/libpod_parent"):
        for group in [*sorted(parent.glob("**/"), reverse=True), parent]:
            with suppress(OSError):  # somebody's container is in it, or it has gone
                group.rmdir()


def _control_groups() -> list[tuple[str, str, str]]:
    """Where the machine has which of them, and the options that mount the same again."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [words for words in lines if Path(words[1]).is_relative_to(CGROUPS)]
    if any(kind == "cgroup" for _, _, kind, *_ in found):  # crun takes the first version or the second, not both
        found = [words for words in found if words[2] != "cgroup2"]
    common = {"rw", "relatime", "nosuid", "nodev", "noexec", "nsdelegate", "memory_recursiveprot"}
    return [
        (point, kind, ",".join(option for option in options.split(",") if option not in common))
        for _, point, kind, options, *_ in found
    ]


def _links() -> bytes:
    """A tar file of the links from / into /usr."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for link in ("bin", "sbin", "lib", "lib64"):
            if Path("/", link).is_symlink():
                archive.add(Path("/", link), arcname=link)
    return buffer.getvalue()
