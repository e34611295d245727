"""The test hosts are what they are said to be, and are gone when they are gone."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hosts.commands import network_pids, pids_in, wait_until
from tests.hosts.host import Host
from tests.hosts.machines import ROOT, TestHosts, claimed, hold, missing

pytestmark = pytest.mark.hosts

REACHED, REFUSED, SILENCE = 0, 1, 124
LISTEN = "import socket, time; s = socket.create_server(('', 5000)); print(flush=True); c = s.accept(); time.sleep(60)"


def connect(host: Host, address: str, port: int = 22) -> int:
    """What a host sees that connects and waits for a second: REACHED, REFUSED or SILENCE."""
    return host.run(["timeout", "1", "bash", "-c", f"</dev/tcp/{address}/{port}"], check=False).returncode


def traces(hosts: TestHosts) -> list[str]:
    """Whatever there is of a set on this machine."""
    prefix = f"slh{hosts.number}"
    found = [f"namespace {path}" for path in Path("/run/netns").iterdir() if path.name.startswith(f"{prefix}-")]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{hosts.state}/" in line]
    found += [name for _, name in socket.if_nameindex() if name == prefix]
    found += [line for line in Path("/proc/net/route").read_text().splitlines() if line.startswith(prefix)]
    return found + [str(hosts.state)] * hosts.state.exists()


def python(host: Host, code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(host.enter([sys.executable, "-c", code]), stdout=subprocess.PIPE, text=True)


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def test_hosts_take_their_key_from_the_laptop_and_from_the_machine(hosts: TestHosts) -> None:
    for name, host in hosts.hosts.items():
        words = hosts.ssh(name, "echo $(hostname) $HOME $SSH_CONNECTION")
        inside = hosts.in_operator(words).stdout.split()
        assert inside[:2] == [name, "/root"] and inside[2] == hosts.laptop.address and inside[4] == host.address
        outside = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout.split()
        assert outside[0] == name and outside[4] == host.address
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
    without = hosts.in_operator(["ssh", *options, hosts["h1"].address, "id"], check=False)
    assert without.returncode == 255 and "Permission denied (publickey)" in without.stderr


def test_a_host_sees_the_environments_and_nothing_of_the_user(hosts: TestHosts) -> None:
    host = hosts["h1"]
    assert host.run(["ls", "-A", "/tmp", "/home", "/var/tmp", "/dev/shm"]).stdout.split() == [
        "/dev/shm:", "/home:", "/tmp:", "/var/tmp:"
    ]  # fmt: skip
    home = set(host.run(["ls", "-A", "/root"]).stdout.split())
    assert ".ssh" in home and not home & {".ray", ".spmd-launch", ".bash_history", ".cache"}
    assert host.run(["ls", "-A", "/root/.ssh", "/etc/ssh"]).stdout.count("known_hosts") == 0
    assert host.run([sys.executable, "-c", "import numpy; print(numpy.__version__)"]).stdout.strip()
    assert (hosts.laptop.path(ROOT) / "pyproject.toml").exists()
    # Refused, or kept on the laptop's own disk: that depends on where on this machine the project lies.
    hosts.laptop.run(["touch", str(ROOT / "touched")], check=False)
    assert not (ROOT / "touched").exists()


def test_what_a_host_writes_stays_on_it(hosts: TestHosts) -> None:
    for folder in ("/etc", "/tmp", "/dev/shm", "/root"):
        hosts["h1"].run(["touch", f"{folder}/slh-test"])
        assert hosts["h1"].path(f"{folder}/slh-test").exists()
        assert not hosts["h2"].path(f"{folder}/slh-test").exists()
        assert not Path(f"{folder}/slh-test").exists()


def test_nobody_calls_the_laptop_or_the_machine_and_no_packet_leaves(hosts: TestHosts) -> None:
    host, subnet = hosts["h1"], f"10.77.{hosts.number}"
    listeners = [python(machine, LISTEN) for machine in (hosts["h2"], hosts.laptop)]
    listeners.append(subprocess.Popen([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True))
    try:
        for listener in listeners:
            assert listener.stdout is not None and listener.stdout.readline() == "\n"
        assert connect(host, hosts["h2"].address, 5000) == REACHED
        assert connect(host, hosts.laptop.address, 5000) == SILENCE
        host.run(["ip", "route", "add", "default", "via", f"{subnet}.1"])  # it tries hard
        assert connect(host, f"{subnet}.1", 5000) == REFUSED  # the switch, where nothing listens
        assert connect(host, f"{subnet}.254", 5000) != REACHED
        assert connect(host, "192.0.2.2", 5000) != REACHED
    finally:
        host.run(["ip", "route", "delete", "default"], check=False)
        for listener in listeners:
            end(listener)


def test_a_cut_is_silence_and_heals(hosts: TestHosts) -> None:
    h1, h2 = hosts["h1"], hosts["h2"]
    assert connect(h2, h1.address) == REACHED
    h1.cut()
    assert connect(h2, h1.address) == connect(h1, h2.address) == connect(hosts.laptop, h1.address) == SILENCE
    assert connect(h1, h1.address) == REACHED and connect(h2, hosts["h3"].address) == REACHED
    assert h1.run(["hostname"]).stdout == "h1\n"  # the back door
    h1.heal()
    assert connect(h2, h1.address) == connect(h1, h2.address) == REACHED


def test_a_power_cut_ends_all_says_nothing_and_leaves_the_disk(hosts: TestHosts) -> None:
    h1, h2 = hosts["h1"], hosts["h2"]
    h1.run(["bash", "-c", "echo kept > /root/kept; touch /tmp/gone; setsid --fork sleep 1000 >&- 2>&-"])
    server = python(h1, LISTEN)
    assert server.stdout is not None and server.stdout.readline() == "\n"
    code = f"import socket; s = socket.create_connection(('{h1.address}', 5000), 2); print(flush=True); s.recv(1)"
    client = subprocess.Popen(h2.enter([sys.executable, "-c", code]), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True)  # fmt: skip
    assert client.stdout is not None and client.stdout.readline() == "\n"
    processes = pids_in("pid", Path(f"/proc/{h1.init()}/ns/pid").stat().st_ino)
    assert len(processes) >= 4  # PID 1, sshd, the sleeper, the server
    h1.kill()
    server.communicate(timeout=10)
    assert not h1.is_on() and not [pid for pid in processes if Path(f"/proc/{pid}/ns/net").exists()]
    assert "TimeoutError" in client.communicate(timeout=10)[1]  # neither closed nor reset
    assert connect(h2, h1.address) == SILENCE
    with pytest.raises(RuntimeError, match="h1 is off"):
        h1.run(["true"])
    h1.boot()
    assert hosts.in_operator(hosts.ssh("h1", "cat /root/kept; ls /tmp")).stdout == "kept\n"
    assert h1.processes() == []


# Nothing is read until all is sent; 33 is SO_RCVBUFFORCE, so that the buffer holds it all.
COUNT = """
import socket
receiver = socket.socket(type=socket.SOCK_DGRAM)
receiver.setsockopt(socket.SOL_SOCKET, 33, 1 << 23)
receiver.bind(('', 5000))
input(print(flush=True) or '')
receiver.setblocking(False)
count = 0
try:
    while receiver.recv(9):
        count += 1
except BlockingIOError:
    print(count)
"""
# Not all at once: the kernel keeps a thousand (netdev_max_backlog) for who gets no processor, and drops the others.
SEND = """
import socket, sys, time
sender = socket.socket(type=socket.SOCK_DGRAM)
for number in range(1000):
    sender.sendto(b'x', (sys.argv[1], 5000))
    if number % 100 == 99:
        time.sleep(0.01)
"""


def test_lost_packets(hosts: TestHosts) -> None:
    h1, h2 = hosts["h1"], hosts["h2"]

    def received_of_1000() -> int:
        entered = h1.enter([sys.executable, "-c", COUNT])
        receiver = subprocess.Popen(entered, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert receiver.stdout is not None and receiver.stdout.readline() == "\n"
        h2.run([sys.executable, "-c", SEND, h1.address])
        return int(receiver.communicate("\n", timeout=30)[0])

    assert connect(h2, h1.address) == REACHED  # each knows the other's hardware address by now
    assert received_of_1000() == 1000
    h1.loss(50)
    assert 400 < received_of_1000() < 600  # six standard deviations
    h1.loss(0)
    assert received_of_1000() == 1000


def test_orphans_are_seen_and_ssh_sessions_are_none(hosts: TestHosts) -> None:
    host = hosts["h2"]
    assert host.processes() == []
    session = subprocess.Popen(
        hosts.laptop.enter(hosts.ssh("h2", "echo; sleep 1000")), stdout=subprocess.PIPE, text=True
    )
    assert session.stdout is not None and session.stdout.readline() == "\n"
    wait_until(
        lambda: [p.argv[-1] for p in host.processes() if p.argv[:1] == ("sleep",)] == ["1000"], "the sleeper is seen"
    )
    end(session)
    for process in host.processes():
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not host.processes(), "the session's processes are gone")
    hosts.in_operator(hosts.ssh("h2", "setsid --fork sleep 1001 >/dev/null 2>&1 </dev/null"))
    wait_until(lambda: [p.argv for p in host.processes()] == [("sleep", "1001")], "the orphan, and only it, is seen")
    (orphan,) = host.processes()
    os.kill(orphan.pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{orphan.pid}").exists(), "PID 1 reaps")
    assert host.processes() == []


def test_a_command_by_the_back_door_ends_with_its_caller(hosts: TestHosts) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        hosts["h1"].run(["sleep", "1002"], timeout_s=0.5)
    wait_until(lambda: not hosts["h1"].processes(), "the sleeper is gone")


def test_sshd_stops_and_starts_and_has_another_key(hosts: TestHosts) -> None:
    host, words = hosts["h3"], hosts.ssh("h3", "hostname")
    assert hosts.in_operator(words).stdout == "h3\n"
    host.stop_sshd()
    assert connect(hosts.laptop, host.address) == REFUSED
    host.start_sshd()
    assert hosts.in_operator(words).stdout == "h3\n"
    host.new_host_key()
    changed = hosts.in_operator(words, check=False)
    assert changed.returncode == 255 and "REMOTE HOST IDENTIFICATION HAS CHANGED" in changed.stderr
    hosts.in_operator(["ssh-keygen", "-q", "-f", f"{hosts.state}/known_hosts", "-R", host.address])
    assert hosts.in_operator(words).stdout == "h3\n"


def test_a_disk_is_full_on_one_host(hosts: TestHosts) -> None:
    write = ["dd", "if=/dev/zero", "of=/root/data", "bs=64k", "count=4"]
    hosts["h1"].fill_disk(leave=128 * 1024)
    with pytest.raises(RuntimeError, match="No space left on device"):
        hosts["h1"].run(write)
    hosts["h2"].run(write)
    hosts["h1"].free_disk()
    hosts["h1"].run(write)


def test_a_name_that_leads_to_loopback(hosts: TestHosts) -> None:
    host = hosts["h1"]
    resolve = [sys.executable, "-c", "import socket; print(socket.gethostbyname(socket.gethostname()))"]
    assert host.run(resolve).stdout.strip() == host.address
    host.set_hosts_line("127.0.1.1 h1")
    assert host.run(resolve).stdout.strip() == "127.0.1.1"
    assert hosts["h2"].run(["getent", "hosts", "h1"]).stdout.split() == [host.address, "h1"]


WAITS = """
import queue, threading, time
start, wall = time.monotonic(), time.time()
time.sleep(0.2)
threading.Event().wait(0.2)
condition = threading.Condition()
with condition:
    condition.wait(0.2)
try:
    queue.Queue().get(timeout=0.2)
except queue.Empty:
    print(wall, start, time.monotonic() - start, time.time() - wall)
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("offset_s", [-3600, 3600])
def test_a_clock_that_is_an_hour_off(hosts: TestHosts, offset_s: int) -> None:
    host = hosts["h1"]
    host.path("/root/waits.py").write_text(WAITS)
    host.set_clock(offset_s)
    now, monotonic = time.time(), time.monotonic()
    words = hosts.ssh("h1", f"{sys.executable} waits.py; date +%s")
    wall, start, waited, waited_wall, date = map(float, hosts.in_operator(words).stdout.split())
    assert abs(wall - now - offset_s) < 60 and abs(date - now - offset_s) < 60
    assert abs(start - monotonic) < 60
    assert 0.8 <= waited < 60 and 0.7 < waited_wall < 60
    assert abs(float(hosts["h2"].run(["date", "+%s"]).stdout) - now) < 60
    host.set_clock(0)
    assert abs(float(hosts.in_operator(hosts.ssh("h1", "date +%s")).stdout) - now) < 60


def test_the_cluster_file_names_the_hosts(hosts: TestHosts, tmp_path: Path) -> None:
    import yaml

    hosts.write_lab(tmp_path / "lab.yaml")
    lab = yaml.safe_load((tmp_path / "lab.yaml").read_text())
    assert lab["provider"]["hosts"] == [host.address for host in hosts.hosts.values()]
    assert Path(lab["provider"]["identity_file"]).stat().st_mode & 0o777 == 0o600
    assert hosts.laptop.path(lab["provider"]["identity_file"]).exists()
    assert hosts["h3"].run([lab["python"], "-c", "print('here')"]).stdout == "here\n"


def test_down_leaves_nothing_and_another_set_as_it_is(hosts: TestHosts) -> None:
    with claimed(["a", "b"], from_machine=True) as others:
        assert others.number != hosts.number
        assert others.in_operator(others.ssh("b", "hostname")).stdout == "b\n"
        assert connect(others["a"], hosts["h1"].address) != REACHED
        processes = [pid for host in others.machines() for pid in network_pids(host.namespace)]
        assert len(processes) >= 3 * 2 and traces(others)
    assert traces(others) == []
    assert not [pid for pid in processes if Path(f"/proc/{pid}/ns/net").exists()]
    others.down()  # again
    assert traces(others) == []
    assert connect(hosts["h1"], hosts["h2"].address) == REACHED


@pytest.fixture
def by_hand() -> Iterator[int]:
    """Number of a set for people that no other run of these tests uses."""
    if why := missing():
        pytest.skip(why)
    number, claim = next((n, claim) for n in range(190, 200) if (claim := hold(n)))
    with claim:
        yield number


def test_the_next_claim_removes_what_a_killed_run_left(by_hand: int) -> None:
    numbers = [by_hand + 50]  # nobody else claims it
    code = "import sys, time\nfrom tests.hosts.machines import claimed\n"
    code += f"with claimed(['a'], from_machine=True, numbers={numbers}):\n    print(flush=True)\n    time.sleep(1000)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment)
    assert run.stdout is not None and run.stdout.readline() == "\n"
    with pytest.raises(RuntimeError, match="are in use"), claimed(["b"], numbers=numbers):
        pass
    end(run)
    left = TestHosts(["a"], numbers[0])
    assert left["a"].is_on()
    processes = network_pids(left["a"].namespace)
    with claimed(["b"], numbers=numbers) as following:
        assert following["b"].is_on() and not left["a"].is_on()
        assert not [pid for pid in processes if Path(f"/proc/{pid}/ns/net").exists()]
    assert traces(left) == []


def test_by_hand(by_hand: int, tmp_path: Path) -> None:
    def tool(*argv: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "tests.hosts", "--set", str(by_hand), *argv]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    try:
        up = tool("up")
        assert up.returncode == 0, up.stderr
        assert f"[10.77.{by_hand}.10, 10.77.{by_hand}.11, 10.77.{by_hand}.12]" in (tmp_path / "lab.yaml").read_text()
        assert tool("run", "h2", "hostname").stdout == "h2\n"
        for action, is_on in {"cut": True, "heal": True, "kill": False, "boot": True}.items():
            assert tool(action, "h2").returncode == 0
            assert TestHosts.existing(by_hand)["h2"].is_on() == is_on
        again, unknown = tool("up"), tool("cut", "h9")
        assert again.returncode == 2 and f"set {by_hand} is up" in again.stderr
        assert unknown.returncode == 2 and f"set {by_hand} has no host h9" in unknown.stderr
    finally:
        assert tool("down").returncode == 0
    assert traces(TestHosts(number=by_hand)) == []
