"""Hosts that are odd, and come up all the same: with a word, and without an effect on the job."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import MARKER
from tests.hosts.conftest import Lab

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]


@dataclasses.dataclass(frozen=True)
class Odd:
    """A cluster of three odd hosts, and what `up` has said of them."""

    lab: Lab
    said: str


PORTS = (6379, 8076, 8077, 8265, 10001, 52365)  # that Ray takes where nobody says others
LISTEN = f"""
import socket, time
servers = [socket.create_server(("", port)) for port in {PORTS}]
print(flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def odd(empty_lab: Lab) -> Iterator[Odd]:
    """h1: an hour ahead, with Ray's usual ports taken; h2: tokens of old; h3: an hour behind, with a process of old.

    Each resolves its own name to 127.0.1.1, as Debian does.
    """
    empty_lab.hosts.restore()
    empty_lab.purge()
    one, two, three = empty_lab.hosts.hosts.values()
    one.set_clock(3600)
    three.set_clock(-3600)
    for host in (one, two, three):
        host.set_hosts_line(f"127.0.1.1 {host.name}")
    listener = subprocess.Popen(one.enter([sys.executable, "-c", LISTEN]), stdout=subprocess.PIPE)
    assert listener.stdout is not None and listener.stdout.readline()
    old = two.path(f"/root/.spmd-launch/hosts/{two.address}/clusters/lab")
    for token in (old / "token", two.path("/root/.ray/auth_token")):
        token.parent.mkdir(parents=True)
        token.write_text("ab" * 32)
    stray = subprocess.Popen(three.enter(["sleep", "601"], env={MARKER: "of-old"}))
    try:
        said = empty_lab.cli("up", str(empty_lab.file))
        yield Odd(empty_lab, said)
    finally:
        for process in (stray, listener):
            process.kill()
            process.communicate()
        empty_lab.cli("down", "lab", "--force")
        empty_lab.hosts.restore()
        two.run(["rm", "-rf", "/root/.ray"])
    assert not empty_lab.processes() and not empty_lab.folders()


def test_odd_hosts_come_up_with_a_word_and_run_a_job(odd: Odd) -> None:
    one, two, three = odd.lab.hosts.hosts.values()
    for host in (one, two, three):
        words = f"{host.address}: its name {host.name} resolves to 127.0.1.1, not {host.address}; its address is used"
        assert words in odd.said
    skews = {host: float(s) for host, s in re.findall(r"(\S+): its clock is ([+-]\d+) s off this machine's", odd.said)}
    assert set(skews) == {one.address, three.address}
    assert abs(skews[one.address] - 3600) < 60 and abs(skews[three.address] + 3600) < 60
    assert f"{two.address}: cleaning up what an earlier cluster 'lab' left" in odd.said
    job = odd.lab.cli.json("submit", "psum-check", "--name", "on-odd", "--checkpoint-every", "40")
    assert (job["state"], odd.lab.cli.job("on-odd")["attempt"]) == ("SUCCEEDED", 1)


def test_a_process_of_a_cluster_that_nobody_holds_is_named(odd: Odd) -> None:
    host = odd.lab.hosts["h3"]
    ((pid, age),) = re.findall(rf"{host.address}: pid (\d+) \(sleep 601\), (\d+) s old, is left of a cluster", odd.said)
    assert f"`kill {pid}` on {host.address} ends it" in odd.said and int(age) < 120
    assert host.run(["cat", f"/proc/{pid}/cmdline"]).stdout == "sleep\x00601\x00"  # it is not ours to end


def test_what_a_crash_has_left_is_named_and_ended(odd: Odd) -> None:
    """Every holder is killed, and a process is left that nothing watched."""
    host = odd.lab.hosts["h2"]
    cluster_id = odd.lab.cli.record("lab")["cluster_id"]
    left = subprocess.Popen(host.enter(["sleep", "602"], env={MARKER: cluster_id}))
    try:
        for machine in odd.lab.hosts.hosts.values():
            (holder,) = [p.pid for p in machine.processes() if "cluster.holder" in p.argv]
            os.kill(holder, signal.SIGKILL)
        odd.lab.cli.wait_for(lambda: "DEAD" in odd.lab.cli("status", "lab"))
        out = odd.lab.cli("up", str(odd.lab.file))
        assert left.wait(timeout=10) == -signal.SIGTERM
    finally:
        left.kill()
        left.wait()
    assert re.search(
        rf"{host.address}: pid \d+ \(sleep 602\), \d+ s old, is left of an earlier cluster of this name", out
    )
    assert re.search(rf"{host.address}: \d+ process\(es\) without a holder were ended: pid \d+", out)
    assert odd.lab.cli.record("lab")["cluster_id"] != cluster_id
    assert odd.lab.cli.json("submit", "psum-check", "--name", "after-crash")["state"] == "SUCCEEDED"
