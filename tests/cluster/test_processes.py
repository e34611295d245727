"""Processes by pid and start time: ours are ended, and nobody else's."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable

import pytest

from cluster.processes import MARKER, ProcessId, end_processes, marked_processes

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(children: list[subprocess.Popen[bytes]]) -> Start:
    """Starts `python -c CODE` (which must print a line when it is ready); ends it after the test."""

    def start(code: str = "", marker: str = "", leads_group: bool = False) -> subprocess.Popen[bytes]:
        program = f"import time, sys\n{code}\nprint(flush=True)\ntime.sleep(600)"
        environment = os.environ | ({MARKER: marker} if marker else {})
        process = subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, start_new_session=leads_group
        )
        children.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    return start


def _identity(process: subprocess.Popen[bytes]) -> ProcessId:
    identity = ProcessId.of(process.pid)
    assert identity is not None
    return identity


def test_the_current_process() -> None:
    identity = ProcessId.current()
    assert identity.pid == os.getpid() and identity.alive()
    assert ProcessId.of(os.getpid()) == identity
    assert ProcessId.from_json(identity.to_json()) == identity


def test_a_process_that_has_ended_is_not_alive_even_as_a_zombie(start: Start) -> None:
    process = start()
    identity = _identity(process)
    assert identity.alive()
    process.kill()
    assert identity.wait(10.0)  # nobody has reaped it yet
    assert process.returncode is None and not identity.alive() and ProcessId.of(process.pid) is None
    process.wait()
    assert ProcessId.of(process.pid) is None
    identity.signal(signal.SIGKILL)
    identity.signal_group(signal.SIGKILL)


def test_a_pid_that_was_used_again_is_left_alone(start: Start) -> None:
    process = start(leads_group=True)
    earlier = ProcessId(process.pid, _identity(process).started - 1)
    assert not earlier.alive() and earlier.wait(0.0)
    earlier.signal(signal.SIGKILL)
    earlier.signal_group(signal.SIGKILL)
    end_processes([earlier])
    time.sleep(0.1)
    assert process.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="names are set through /proc")
@pytest.mark.parametrize("name", [b"a) R (b", b"two words", b"\xff\xfe", b"\xc3"])
def test_names_of_processes_do_not_matter(start: Start, name: bytes) -> None:
    process = start(f"open('/proc/self/comm', 'wb').write({name!r})")
    identity = _identity(process)
    assert identity.alive()
    process.kill()
    assert identity.wait(10.0)


def test_waiting_ends_in_time(start: Start) -> None:
    identity = _identity(start())
    before = time.monotonic()
    assert not identity.wait(0.2)
    assert 0.2 <= time.monotonic() - before < 30.0


def test_a_group_is_signalled_as_a_whole_or_its_only_process(start: Start) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    for leads_group in (True, False):
        process = subprocess.Popen(
            [sys.executable, "-c", f"{code}; import time; time.sleep(600)"],
            stdout=subprocess.PIPE, start_new_session=leads_group,
        )  # fmt: skip
        assert process.stdout is not None
        child = ProcessId.of(int(process.stdout.readline()))
        assert child is not None
        _identity(process).signal_group(signal.SIGKILL)
        assert process.wait(10.0) == -signal.SIGKILL
        assert child.wait(10.0 if leads_group else 0.2) == leads_group
        child.signal(signal.SIGKILL)
        assert child.wait(10.0)
        process.stdout.close()


def test_marked_processes_are_found_by_their_marker(start: Start) -> None:
    ours, theirs = uuid.uuid4().hex, uuid.uuid4().hex
    code = "import subprocess; child = subprocess.Popen(['sleep', '600'])"
    process = start(code, marker=ours)
    other = start(marker=theirs)
    found = marked_processes(ours)
    assert process.pid in {identity.pid for identity in found} and len(found) == 2
    assert [identity.pid for identity in marked_processes(theirs)] == [other.pid]
    end_processes(found)
    assert marked_processes(ours) == [] and other.poll() is None


def test_a_process_that_wiped_its_environment_is_found_by_its_session(start: Start) -> None:
    ours = uuid.uuid4().hex
    child = "import subprocess, sys; print(subprocess.Popen(['env', '-i', 'sleep', '600']).pid, flush=True)"
    leader = start(child, marker=ours, leads_group=True)
    session = _identity(leader)
    stranger = start(marker=uuid.uuid4().hex, leads_group=True)
    deadline = time.monotonic() + 60.0
    # Until `env` has become the sleep, it has the marker yet, by which it would be found as well.
    while len(found := marked_processes(ours, session)) < 2 or len(marked_processes(ours)) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    leader.kill()
    leader.wait(10.0)
    left = marked_processes(ours, session)
    assert len(left) == 1 and left[0] in found and left[0].pid != stranger.pid
    end_processes(left)
    reused = ProcessId(stranger.pid, started=-1.0)  # the number of the leader, given to another process since
    assert marked_processes(ours, reused) == []


def test_this_process_is_never_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARKER, "mine")
    assert marked_processes("mine") == []


def test_processes_are_ended_gently_then_by_force(start: Start) -> None:
    gentle = start("import signal; signal.signal(15, lambda *_: sys.exit(4))")
    stubborn = start("import signal; signal.signal(15, signal.SIG_IGN)")
    frozen = start()
    frozen.send_signal(signal.SIGSTOP)
    identities = [_identity(process) for process in (gentle, frozen, stubborn)]
    end_processes(identities[:2], grace_s=60.0)  # they are given the time that they need, and no more is waited
    before = time.monotonic()
    end_processes(identities, grace_s=1.0)
    assert time.monotonic() - before < 30.0
    assert gentle.wait(10.0) == 4
    assert stubborn.wait(10.0) == -signal.SIGKILL
    assert frozen.wait(10.0) == -signal.SIGTERM
