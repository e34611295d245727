"""Words go to a host as they are: through ssh, its own language of options, and the login shell there."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.access import Access, Target
from cluster.ssh import Ssh, SshError
from tests.hosts.machines import TestHosts
from tests.nasty import nasty

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]

ECHO = "import json, os, sys; print(json.dumps([list(os.fsencode(word)) for word in sys.argv[1:]]))"
FOLDERS = ("plain", "two words", "a'b\"c", "%h %% %n", "$HOME `id`", "back\\slash", "~tilde", "#ü*?[x]", "-o -F")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="slt-") as path:
        yield Path(path)


def ssh_to(hosts: TestHosts, home: Path, run_folder: Path, identity: Path | None = None) -> Ssh:
    address = hosts["h1"].address
    target = Target.parse(address)
    access = Access(targets=(target,), user="root", identity_file=str(identity or hosts.identity))
    run_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Ssh(target, access, "lab", run_folder)


def test_words_arrive_byte_for_byte(hosts: TestHosts, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPMD_LAUNCH_HOME", str(folder / "home"))
    ssh = ssh_to(hosts, folder, folder / "run")
    words = [word for word in nasty(1000) if "\0" not in word]
    try:
        answer = json.loads(ssh.run(["python3", "-c", ECHO, *words]))
        for word in words[:40]:  # also as what is run
            with pytest.raises(SshError):
                ssh.run([f"no-such-program{word}"])
    finally:
        ssh.close()
    assert [bytes(word) for word in answer] == [word.encode(errors="surrogateescape") for word in words]
    assert not list(hosts["h1"].path("/root").glob("*PWNED*"))


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_may_be_called_anything(
    hosts: TestHosts, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state folder, the folder of the shared connection, and the key."""
    home, identity = folder / name / "home", folder / name / "k"
    (folder / name).mkdir()
    shutil.copy2(hosts.identity, identity)
    monkeypatch.setenv("SPMD_LAUNCH_HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    ssh = ssh_to(hosts, home, folder / name / "run", identity)
    try:
        assert ssh.run(["echo", "here"]) == b"here\n"
        assert ssh.connected()
        assert (home / "known_hosts" / "lab").is_file()
    finally:
        ssh.close()
    assert {path.name for path in (folder / name).iterdir()} == {"home", "k", "run"}


def test_a_folder_that_ssh_would_read_otherwise_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("${HOME}", "a\nProxyCommand touch PWNED"):
        monkeypatch.setenv("SPMD_LAUNCH_HOME", str(folder / name))
        with pytest.raises(SshError, match="use another path"):
            Ssh(Target("one"), Access(targets=(Target("one"),)), "lab", folder)
