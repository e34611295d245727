"""Hosts whose Python is a container image: what is told of it, and that nothing else is different."""

import dataclasses
import grp
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli, cluster_file
from tests.hosts import podman
from tests.hosts.commands import PATH, wait_until
from tests.hosts.conftest import Lab
from tests.hosts.test_faults_at_start import MOMENTS, begin_up, refused

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.timeout(600)]

SLACK = float(os.environ.get("SLACK", "1"))
JOBS = {
    "psum-check": ["--set", "steps=20"],
    "transformer": ["--set", "steps=12", "--set", "batch_size=24", "--checkpoint-every", "4"],
}


@pytest.fixture(scope="module")
def boxed(empty_lab: Lab) -> Iterator[Lab]:
    """A lab whose file names an image that all hosts have; nothing is up."""
    if why := podman.missing():
        pytest.skip(why)
    empty_lab.purge()
    hosts = list(empty_lab.hosts.hosts.values())
    try:
        for host in hosts:
            podman.give_podman(host)
        try:
            podman.give_image(hosts[0])
        except RuntimeError as error:
            pytest.skip(f"podman runs no container on a test host of this machine: {error}")
        for host in hosts[1:]:
            podman.give_image(host)
        _ask_for(empty_lab, podman.IMAGE)
        yield empty_lab
    finally:
        for host in hosts:
            podman.take_podman(host)
        podman.remove_empty_groups()


@pytest.fixture
def clean(boxed: Lab) -> Iterator[Lab]:
    """No container and nothing else of ours is on any host, before the test and after it."""
    boxed.purge()
    _ask_for(boxed, podman.IMAGE)
    yield boxed
    assert not _left(boxed)


@pytest.fixture
def running(clean: Lab) -> Iterator[Lab]:
    """A cluster of three hosts that is up, each in its container; `down` leaves nothing of it."""
    clean.cli("up", str(clean.file))
    yield clean
    clean.cli("down", clean.name, "--force")


def _ask_for(lab: Lab, image: str) -> None:
    lines = [line for line in lab.file.read_text().splitlines() if not line.startswith("python:")]
    lab.file.write_text("\n".join([*lines, f"python: image:{image}", ""]))


def _containers(lab: Lab) -> list[str]:
    return [f"{name}: {found}" for name, host in lab.hosts.hosts.items() for found in podman.containers(host)]


def _left(lab: Lab) -> list[str]:
    return [*lab.processes(), *lab.folders(), *_containers(lab)]


def _local_digests() -> dict[str, str]:
    """What the local provider makes of the same jobs, on as many hosts and devices."""
    with tempfile.TemporaryDirectory(prefix="slt-") as folder:
        cli = Cli(Path(folder))
        cli("up", str(cluster_file(Path(folder), "near", num_hosts=3)))
        try:
            return {job: cli.json("submit", job, *JOBS[job], "--cluster", "near")["result_digest"] for job in JOBS}
        finally:
            cli("down", "near", "--force")


def test_jobs_run_in_containers_with_the_local_result_also_after_a_rank_was_killed(running: Lab) -> None:
    for host in running.hosts.hosts.values():
        (name,) = podman.containers(host)
        assert name.startswith(f"spmd-launch-{running.name}-")
        ours = [p.pid for p in host.processes() if any(word in p.argv for word in ("cluster.holder", "ray::Agent"))]
        own, box = os.readlink(f"/proc/{host.init()}/ns/mnt"), {os.readlink(f"/proc/{pid}/ns/mnt") for pid in ours}
        assert len(ours) == 2 and len(box) == 1 and own not in box
    digests = _local_digests()
    calm = running.cli.json("submit", "psum-check", *JOBS["psum-check"])
    assert calm["result_digest"] == digests["psum-check"]
    fault = ("--inject", "kill rank=1 step=10")
    killed = running.cli.json("submit", "transformer", *JOBS["transformer"], "--name", "killed", *fault)
    assert (killed["state"], running.cli.job("killed")["attempt"]) == ("SUCCEEDED", 2)
    assert killed["result_digest"] == digests["transformer"]
    assert running.cli.events("killed", "resumed")


@pytest.mark.parametrize("moment", MOMENTS[1:])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_client_that_ends_in_the_middle_leaves_no_container(clean: Lab, moment: str, number: signal.Signals) -> None:
    process = begin_up(clean, moment)
    assert _containers(clean)
    os.killpg(process.pid, number)
    process.communicate()
    wait_until(lambda: not _left(clean), "the hosts are clean", 30 * SLACK)
    if number == signal.SIGKILL:
        clean.cli("down", clean.name)


def test_a_container_ends_with_its_holder_and_up_begins_anew(running: Lab) -> None:
    for host in running.hosts.hosts.values():
        (holder,) = [p.pid for p in host.processes() if "cluster.holder" in p.argv]
        os.kill(holder, signal.SIGKILL)
    wait_until(lambda: not _containers(running), "the containers end", 30 * SLACK)
    running.cli("up", str(running.file))
    assert len(_containers(running)) == 3
    assert running.cli.json("submit", "psum-check")["state"] == "SUCCEEDED"


def test_a_host_that_boots_again_has_a_container_again(running: Lab) -> None:
    host = running.hosts["h2"]
    host.kill()
    host.boot()
    podman.give_podman(host)
    assert len(podman.containers(host)) == 1  # that of before: it does not run, and its name is taken
    running.cli("down", running.name, "--force")
    assert not _left(running)
    running.cli("up", str(running.file))
    assert running.cli.json("submit", "psum-check")["state"] == "SUCCEEDED"


@pytest.fixture
def of_a_user(boxed: Lab) -> Iterator[Lab]:
    """A lab of one host, for a user who is not root there; nothing is up."""
    if shutil.which("newuidmap", path=PATH) is None:
        pytest.skip("podman without root needs newuidmap, which is not installed (`apt-get install uidmap`)")
    host, user = boxed.hosts["h1"], "alice"
    try:
        podman.give_user(host, user)
        podman.give_image(host, user=user)
        file = boxed.file.with_name("user.yaml")
        boxed.hosts.write_lab(file, names=["h1"], min_hosts=1)
        file.write_text(file.read_text().replace("user: root", f"user: {user}"))
        lab = dataclasses.replace(boxed, file=file)
        _ask_for(lab, podman.IMAGE)
        yield lab
    finally:
        podman.take_user(host, user)


def test_a_user_without_root_has_containers_too(of_a_user: Lab) -> None:
    lab, host = of_a_user, of_a_user.hosts["h1"]

    def command_lines() -> list[tuple[str, ...]]:
        return [process.argv for process in host.processes() if process.argv != ("podman",)]  # it keeps one of its own

    lab.cli("up", str(lab.file))
    assert lab.cli.json("submit", "psum-check")["state"] == "SUCCEEDED"
    (holder,) = [p.pid for p in host.processes() if "cluster.holder" in p.argv]
    assert Path(f"/proc/{holder}").stat().st_uid == host.path("/home/alice").stat().st_uid != 0
    status = Path(f"/proc/{holder}/status").read_text().splitlines()
    groups = next(line.split() for line in status if line.startswith("Groups:"))
    assert str(grp.getgrnam(podman.GROUP).gr_gid) in groups, "storage may be open to that group only"
    os.kill(holder, signal.SIGKILL)
    wait_until(lambda: not command_lines(), "the container ends", 30 * SLACK)
    process = begin_up(lab, "up, the head")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not command_lines(), "the host is clean", 30 * SLACK)
    lab.cli("up", str(lab.file))
    lab.cli("down", lab.name)
    assert not command_lines()


def test_an_image_that_cannot_be_had_is_refused_with_the_host(clean: Lab) -> None:
    image = "localhost:1/spmd-launch/none:1"
    _ask_for(clean, image)
    out = " ".join(refused(clean).split())
    for host in clean.hosts.hosts.values():
        assert f"host {host.address}: image {image} is not there and cannot be pulled" in out


def test_an_image_with_another_python_on_one_host_is_refused(clean: Lab) -> None:
    image = "localhost/spmd-launch-test:odd"
    one, two, three = clean.hosts.hosts.values()
    bare = str(Path(sys.base_prefix) / "bin" / "python3")
    for host, python in ((one, sys.executable), (two, sys.executable), (three, bare)):
        podman.give_image(host, image, python)
    _ask_for(clean, image)
    refused(clean, f"{three.address}: its Python has no ray, jax")
