"""Where the token, the keys of authority and ranks, and the values of `env` are; and that they are nowhere else."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hosts.conftest import Lab

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.timeout(600)]

NAME = "secretive"
MARK = "s3cret-7f3a9"  # what no encoding of the value changes
VALUE = f"{MARK} $(touch /tmp/PWNED) `id` '\"% ${{HOME}} \\ ü"
HOST_FOLDERS = ("/root", "/tmp", "/var", "/run", "/etc", "/dev/shm", "/home", "/opt")
# Which files may hold what. What `env` holds stands in the cluster's record.
PLACES = {
    "token": {"token"},
    "authority": {"authority.key"},
    "rank 0": {"key.pem"},
    "rank 1": {"key.pem"},
    "rank 2": {"key.pem"},
    "env": {"cluster.json", "spec.json"},
}


class CommandLines:
    """Every command line that a process of this machine, and so of its hosts, has had meanwhile."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "CommandLines":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self.seen |= set(contents("cmdline"))


def contents(file: str) -> Iterator[bytes]:
    """That file of every process in /proc."""
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        try:
            yield path.read_bytes()
        except OSError:
            continue  # ended meanwhile


class Run:
    """A cluster with a job that runs on it, and what has been seen of it from its beginning."""

    def __init__(self, lab: Lab, commands: CommandLines):
        self.lab, self.commands = lab, commands
        self.folders = {
            name: host.path(f"/root/.spmd-launch/hosts/{host.address}/clusters/{NAME}")
            for name, host in lab.hosts.hosts.items()
        }
        head = self.folders["h1"]
        self.secrets = {
            "token": (head / "token").read_bytes(),
            "authority": body((head / "authority.key").read_bytes()),
            "env": MARK.encode(),
        }
        for rank, folder in enumerate(self.folders.values()):
            (key,) = folder.glob("hosts/*/attempts/*/tls/key.pem")
            self.secrets[f"rank {rank}"] = body(key.read_bytes())

    def files(self) -> Iterator[Path]:
        """What has been written on the hosts since they booted, and all of the client's."""
        for host in self.lab.hosts.hosts.values():
            booted = host.path("/run/ready").stat().st_mtime
            for folder in HOST_FOLDERS:
                for path in files_below(host.path(folder)):
                    with suppress(FileNotFoundError):  # removed meanwhile
                        if path.stat().st_mtime >= booted:
                            yield path
        yield from (path for path in files_below(self.lab.cli.home) if path.suffix != ".yaml")  # a person's own


def files_below(root: Path) -> Iterator[Path]:
    """All files on the root's own disk: hosts see the machine's Python environments, which are on another."""
    disk = root.stat().st_dev
    for folder, folders, names in os.walk(root):
        kept = [name for name in folders if os.path.lexists(f"{folder}/{name}")]
        folders[:] = [name for name in kept if os.lstat(f"{folder}/{name}").st_dev == disk]
        yield from (path for name in names if (path := Path(folder, name)).is_file() and not path.is_symlink())


def body(pem: bytes) -> bytes:
    """The middle line of a key, which is no other key's."""
    lines = pem.splitlines()
    return lines[len(lines) // 2]


@pytest.fixture(scope="module")
def run(empty_lab: Lab) -> Iterator[Run]:
    cli = empty_lab.cli
    file = empty_lab.file.with_name("secretive.yaml")
    text = empty_lab.file.read_text().replace("name: lab", f"name: {NAME}")
    file.write_text(f"{text}env:\n  CREDENTIAL: |-\n    {VALUE}\n")
    with CommandLines() as commands:
        try:
            cli("up", str(file))
            pauses = [word for step in range(5, 45) for word in ("--inject", f"sleep rank=1 step={step} seconds=3")]
            steps = ("--set", "steps=60", "--set", "size=32", "--set", "report_every=1")
            cli("submit", "psum-check", *steps, *pauses, "--name", "quiet", "--detach", "--cluster", NAME)
            cli.wait_for(lambda: [rank for rank in cli.json("status", "quiet")["ranks"] if rank["step"]], 120.0)
            cli("doctor", NAME, "--security")
            cli("stacks", "quiet")
            yield Run(empty_lab, commands)
        finally:
            cli("down", NAME, "--force")


def test_no_secret_was_ever_in_a_command_line(run: Run) -> None:
    assert any(b"cluster.holder" in words for words in run.commands.seen), "it was watched from the start"
    for name, secret in run.secrets.items():
        assert not [words for words in run.commands.seen if secret in words], name


def test_no_process_has_the_token_or_a_key_in_its_environment(run: Run) -> None:
    environments = list(contents("environ"))
    for name in set(run.secrets) - {"env"}:
        assert not [one for one in environments if run.secrets[name] in one], name


def test_ranks_get_the_value_of_a_variable_byte_for_byte(run: Run) -> None:
    for host in run.lab.hosts.hosts.values():
        ranks = [process for process in host.processes() if "launcher.rank.template" in process.argv]
        assert ranks
        for rank in ranks:
            variables = Path(f"/proc/{rank.pid}/environ").read_bytes().split(b"\0")
            assert f"CREDENTIAL={VALUE}".encode() in variables
        assert not host.path("/tmp/PWNED").exists()


def test_secrets_are_in_files_of_their_owner_and_in_no_other(run: Run) -> None:
    """Neither in logs, Ray's among them, nor in the records of jobs."""
    found: dict[str, set[str]] = {name: set() for name in run.secrets}
    searched = 0
    for path in run.files():
        try:
            data = path.read_bytes()
        except OSError:
            continue  # removed meanwhile
        searched += 1
        for name, secret in run.secrets.items():
            if secret in data:
                found[name].add(path.name)
                assert path.name in PLACES[name], f"{name} is in {path}"
                assert is_private(path), f"{path} can be read by other users"
                if name != "env":
                    assert path.stat().st_mode & 0o777 == 0o600, path
    assert searched > 200
    assert found == PLACES


def is_private(path: Path) -> bool:
    """Whether other users are kept from a file, by its mode or by that of a folder of ours above it."""
    ours = [folder for folder in path.parents if ".spmd-launch/" in str(folder) or "/slt-" in str(folder)]
    return not path.stat().st_mode & 0o044 or any(not folder.stat().st_mode & 0o011 for folder in ours)


def test_the_clients_folder_holds_no_key(run: Run) -> None:
    names = {path.name for path in run.lab.cli.home.rglob("*")}
    assert not names & {"token", "authority.key", "key.pem"}
