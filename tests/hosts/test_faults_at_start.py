"""Faults that are there before `up`, or come in the middle of it: what is said, and that nothing is left."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.ssh import CONNECT_TIMEOUT_S
from tests.conftest import COMMAND
from tests.hosts.commands import wait_until
from tests.hosts.conftest import Lab
from tests.hosts.host import Host

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]

SLACK = float(os.environ.get("SLACK", "1"))  # how many times the promised seconds, where others use the machine too
ODD_PYTHON = Path("/opt/odd/python")


@pytest.fixture
def clean(empty_lab: Lab) -> Iterator[Lab]:
    """Hosts on which nothing of ours is, before the test and after it."""
    empty_lab.purge()
    yield empty_lab
    assert not empty_lab.processes()
    assert not empty_lab.folders()


def refused(lab: Lab, *words: str, file: Path | None = None) -> str:
    """`up` fails and says these words; afterwards there is nothing of it, here or on any host."""
    out = lab.cli("up", str(file or lab.file), code=1)
    assert all(word in out for word in words), out
    assert not lab.processes()
    for host in lab.hosts.hosts.values():
        assert not host.path("/root/.spmd-launch").exists(), host.run(["find", "/root/.spmd-launch"]).stdout
    assert not (lab.cli.home / "clusters" / lab.name).exists()
    assert "no cluster is up" in lab.cli("status")
    return out


# -- refused


@pytest.mark.parametrize("leave", [0, 2**30])
def test_a_disk_is_full(clean: Lab, leave: int) -> None:
    host = clean.hosts["h2"]
    host.fill_disk(leave)
    out = refused(clean, f"{host.address}: ", f"are free at /root/.spmd-launch/hosts/{host.address}, at least 2 GiB")
    (num_bytes,) = re.findall(r"(\d+) bytes \(", out)
    assert abs(int(num_bytes) - leave) < 2**20
    assert clean.hosts["h1"].address not in out


def odd_python(host: Host, code: str) -> None:
    """An interpreter on one host's disk: the common one, with something changed by `code` as it starts."""
    folder = host.path(ODD_PYTHON).parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    (folder / "python").write_text(
        f'#!/bin/sh\nPYTHONPATH={ODD_PYTHON.parent} exec {shlex.quote(sys.executable)} "$@"\n'
    )
    (folder / "python").chmod(0o755)


@pytest.fixture
def with_odd_python(clean: Lab, tmp_path: Path) -> Iterator[Path]:
    """A cluster file that names an interpreter which each host has for itself."""
    file = tmp_path / "lab.yaml"
    file.write_text(re.sub(r"python: .*", f"python: {ODD_PYTHON}", clean.file.read_text()))
    for host in clean.hosts.hosts.values():
        odd_python(host, "")
    yield file
    for host in clean.hosts.hosts.values():
        host.run(["rm", "-rf", str(ODD_PYTHON.parent)])


def test_another_python(clean: Lab, with_odd_python: Path) -> None:
    odd_python(clean.hosts["h2"], "import sys; sys.version_info = (3, 10, 14, 'final', 0)\n")
    right = "{}.{}.{}".format(*sys.version_info[:3])
    one, two = clean.hosts["h1"].address, clean.hosts["h2"].address
    refused(clean, f"{two}: has Python 3.10.14, expected {right}, as {one} has", file=with_odd_python)


def test_another_version_of_a_package(clean: Lab, with_odd_python: Path) -> None:
    host = clean.hosts["h3"]
    folder = host.path(ODD_PYTHON).parent / "numpy-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")
    refused(clean, f"{host.address}: has numpy 1.0, expected ", file=with_odd_python)


def test_no_such_python(clean: Lab, with_odd_python: Path) -> None:
    host = clean.hosts["h2"]
    host.path(ODD_PYTHON).unlink()
    refused(clean, f"{host.address}: its Python does not run", str(ODD_PYTHON), file=with_odd_python)


def test_a_changed_host_key(clean: Lab) -> None:
    host = clean.hosts["h3"]
    for each in clean.hosts.hosts.values():
        each.fill_disk(0)
    refused(clean, "are free at")  # by now all keys are known here
    host.new_host_key()
    known = clean.cli.home / "known_hosts" / clean.name
    out = refused(clean, f"host {host.address}: its host key is not the one it had before")
    (command,) = re.findall(r"`(ssh-keygen .*?)`", out)
    assert str(known) in command and host.address in command
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    refused(clean, f"{host.address}: ", "are free at")


@pytest.mark.parametrize(("name", "how"), [("h1", "off"), ("h2", "off"), ("h3", "no sshd"), ("h2", "cut")])
def test_a_host_does_not_answer(clean: Lab, name: str, how: str) -> None:
    host = clean.hosts[name]
    words = {"off": "is it up", "no sshd": "no sshd answers on that port", "cut": "is it up"}[how]
    {"off": host.kill, "no sshd": host.stop_sshd, "cut": host.cut}[how]()
    start = time.monotonic()
    out = clean.cli("up", str(clean.file), code=1)
    took = time.monotonic() - start
    assert f"host {host.address}: " in out and words in out, out
    assert took < (CONNECT_TIMEOUT_S + 2) * SLACK, f"{took:.1f} s"
    assert not (clean.cli.home / "clusters" / clean.name).exists()
    clean.hosts.restore()
    assert not clean.processes() and not clean.folders()


# -- in the middle


def begin_up(lab: Lab, until: str) -> "subprocess.Popen[str]":
    """`up` in a session of its own, as in a terminal, at the moment when it has said that."""
    process = subprocess.Popen(
        [*COMMAND, "up", str(lab.file)], env=lab.cli.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if until in line:
            return process
    raise AssertionError(f"`up` never said {until!r}: {said}")


MOMENTS = ("looking at", "up, the head", "starting an agent")


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_leaves_nothing(clean: Lab, moment: str) -> None:
    process = begin_up(clean, moment)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=30 * SLACK)
    assert process.returncode == 130, out
    wait_until(lambda: not clean.processes() and not clean.folders(), "the hosts are clean", 10 * SLACK)
    assert "no cluster is up" in clean.cli("status"), out


@pytest.mark.parametrize("moment", MOMENTS[1:])
def test_a_client_that_is_killed_leaves_nothing_on_hosts(clean: Lab, moment: str) -> None:
    process = begin_up(clean, moment)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not clean.processes() and not clean.folders(), "the hosts are clean", 20 * SLACK)
    clean.cli("down", clean.name)
    assert "no cluster is up" in clean.cli("status")


def test_a_lost_connection_to_one_host_ends_up_everywhere(clean: Lab) -> None:
    process = begin_up(clean, "up, the head")
    clean.hosts["h2"].run(["sh", "-c", "kill $(pgrep -f 'sshd.*root')"], check=False)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and f"host {clean.hosts['h2'].address}" in out, out
    wait_until(lambda: not clean.processes() and not clean.folders(), "the hosts are clean", 20 * SLACK)


# -- down


@pytest.mark.long
def test_down_says_which_host_it_could_not_reach_and_ends_it_later(clean: Lab) -> None:
    clean.cli("up", str(clean.file))
    host = clean.hosts["h3"]
    host.cut()
    out = clean.cli("down", clean.name, code=1)
    assert "not down everywhere" in out and f"host {host.address}: " in out and "is it up" in out, out
    assert not clean.hosts["h1"].processes() and not clean.hosts["h2"].processes()
    host.heal()
    clean.cli("down", clean.name)
    assert not clean.processes()
    clean.cli("up", str(clean.file))
    clean.hosts["h1"].cut()
    assert "whether jobs run on 'lab' is not known" in clean.cli("down", clean.name, code=1)
    assert "stays until" in clean.cli("down", clean.name, "--force")
    assert "no cluster is up" in clean.cli("status")
    clean.hosts["h1"].heal()
    clean.cli("up", str(clean.file))  # finds what was forgotten
    clean.cli("down", clean.name, "--force")
    clean.purge()
