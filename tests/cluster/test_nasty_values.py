"""Whatever stands in a cluster file is refused in words, or means just what it says, to ssh too."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.access import Access, Target
from cluster.config_file import load
from cluster.errors import ClusterConfigError, ClusterError
from cluster.spec import ClusterSpec, SshProviderSpec
from cluster.ssh import Ssh
from tests.nasty import nasty


def spec(**change: Any) -> dict[str, Any]:
    provider = {"type": "ssh", "hosts": ["one", "two"]} | change.pop("provider", {})
    return {"name": "lab", "provider": provider, "num_hosts": 2, "devices_per_host": 2} | change


# Each setting: where the text goes, and where it is found again.
SETTINGS: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[[ClusterSpec], Any]]] = {
    "name": (lambda text: spec(name=text), lambda found: found.name),
    "host": (lambda text: spec(provider={"hosts": [text, "two"]}), lambda found: _provider(found).hosts[0]),
    "user": (lambda text: spec(provider={"user": text}), lambda found: _provider(found).user),
    "identity_file": (
        lambda text: spec(provider={"identity_file": text}),
        lambda found: _provider(found).identity_file,
    ),
    "python": (lambda text: spec(python=text), lambda found: found.python),
    "storage_path": (lambda text: spec(storage_path=text), lambda found: found.storage_path),
    "env value": (lambda text: spec(env={"X": text}), lambda found: found.env["X"]),
    "env name": (lambda text: spec(env={text: "x"}), lambda found: next(iter(found.env))),
}
HARMLESS_TO_SSH = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:@\[\]-]*")


def _provider(found: ClusterSpec) -> SshProviderSpec:
    assert isinstance(found.provider, SshProviderSpec)
    return found.provider


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_value_is_refused_in_one_line_or_kept_as_it_is(setting: str) -> None:
    put, get = SETTINGS[setting]
    kept = 0
    for text in nasty(1000):
        try:
            found = ClusterSpec.from_json(put(text))
        except ClusterConfigError as error:
            assert len(str(error).splitlines()) == 1 and len(str(error)) < 10_000
            continue
        kept += 1
        assert get(found) == text
        if setting in ("name", "host", "user"):
            assert HARMLESS_TO_SSH.fullmatch(text), text
    assert kept, "a rule that refuses everything shows nothing"


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_value_in_a_file_is_refused_in_one_line_or_kept_as_it_is(setting: str, tmp_path: Path) -> None:
    put, get = SETTINGS[setting]
    file = tmp_path / "lab.yaml"
    kept = 0
    for text in nasty(50):
        try:
            file.write_text(yaml.safe_dump(put(text), allow_unicode=True))
        except UnicodeEncodeError:
            continue  # no file can hold it
        try:
            found = load(file)
        except ClusterConfigError as error:
            assert len(str(error).splitlines()) == 1
            continue
        kept += 1
        assert get(found) == text
    assert kept


def options_of(ssh: Ssh) -> dict[str, str]:
    """What OpenSSH makes of them, without a connection."""
    words = [*ssh._options, "-G", "-F", "none", "--", ssh.target.name]
    done = subprocess.run(["ssh", *words], capture_output=True, text=True, errors="surrogateescape", check=True)
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def test_no_path_smuggles_an_option_into_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = 0
    for text in nasty(60):
        identity = f"/keys/{text}"
        try:
            provider = SshProviderSpec(hosts=("one",), identity_file=identity)
            monkeypatch.setenv("SPMD_LAUNCH_HOME", str(tmp_path / text.replace("\0", "")[:40]))
            ssh = Ssh(Target("one"), provider.access, "lab", tmp_path)
        except (ClusterConfigError, ClusterError):
            continue
        told += 1
        found = options_of(ssh)
        assert found["batchmode"] == "yes" and found["identitiesonly"] == "yes"
        assert found.get("proxycommand", "none") == "none" and "localcommand" not in found
        assert found["hostname"] == "one"
        assert Path(found["identityfile"].replace("%%", "%")) == Path(ssh_normal(identity))
    assert told > 50


def ssh_normal(path: str) -> str:
    import os

    return os.path.abspath(path)


def test_hosts_whose_long_names_end_alike_share_no_connection(tmp_path: Path) -> None:
    access = Access(targets=())
    ends = "rack-7.cluster.example.internal"
    hosts = [Ssh(Target.parse(f"{name}.{ends}"), access, "lab", tmp_path) for name in ("node-1", "node-2")]
    first, second = (options_of(host)["controlpath"] for host in hosts)
    assert first != second


def test_an_identity_that_ssh_would_read_otherwise_is_refused() -> None:
    for text in ("/keys/${HOME}", "/keys/a\nProxyCommand=x", "/keys/a\0"):
        with pytest.raises(ClusterConfigError, match=r"provider\.identity_file"):
            SshProviderSpec(hosts=("one",), identity_file=text)


def test_a_machine_with_an_address_keeps_its_key_under_its_name(tmp_path: Path) -> None:
    found = options_of(Ssh(Target("pod-w-1", address="10.0.0.2"), Access(targets=()), "lab", tmp_path))
    assert (found["hostname"], found["hostkeyalias"]) == ("10.0.0.2", "pod-w-1")
