"""When the process that brings lost hosts back is begun beside a follower, how often, and that it ends with it."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from cluster.record import Cluster
from launcher import host_watch
from launcher.host_watch import HostWatch
from launcher.mend_beside import GIVEN, NOT_GIVEN

# In the place of `launcher.mend_beside`: says that it has begun, and ends as that does, with its input.
WAITS = "import sys; print('! asking for new machines', flush=True); sys.stdin.read(); print('given back')"
SLOW = WAITS + "; import time; time.sleep(600)"


class Paid:
    """As much of a cluster as is looked at."""

    name = "pod"

    def __init__(self, is_paid: bool):
        self.spec = self.provider = self
        self.is_paid = is_paid


def cluster(is_paid: bool = True) -> Cluster:
    return cast(Cluster, Paid(is_paid))


class Begun(list["subprocess.Popen[str]"]):
    """What was begun; the next will be `program`."""

    program = WAITS


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begun]:
    found = Begun()
    begin = subprocess.Popen

    def popen(words: list[str], **options: Any) -> "subprocess.Popen[str]":
        assert words[1:] == ["-P", "-m", "launcher.mend_beside", "pod"]
        found.append(begin([sys.executable, "-c", found.program], **options))
        return found[-1]

    monkeypatch.setattr(host_watch.subprocess, "Popen", popen)
    for name in ("FIRST_PAUSE_S", "LOOK_PAUSE_S"):
        monkeypatch.setattr(host_watch, name, 0.0)
    for name in ("PATIENCE_S", "READ_S"):
        monkeypatch.setattr(host_watch, name, 60.0)
    yield found
    for process in found:
        process.kill()
        process.wait()


def wait_for(found: Callable[[], Any]) -> Any:
    while not (value := found()):
        time.sleep(0.01)
    return value


def test_it_is_begun_once_while_a_cloud_s_hosts_are_lost(begun: Begun) -> None:
    watch, said = HostWatch(max_times=2), list[str]()
    watch.hear(cluster(), [])
    watch.hear(cluster(is_paid=False), ["h1"])
    watch.end(said.append)
    assert not begun and not said
    watch.hear(cluster(), ["h1"])
    watch.hear(cluster(), ["h1"])
    assert len(begun) == 1
    assert wait_for(watch.news) == ["! asking for new machines"] and watch.news() == []
    watch.end(said.append)
    assert said[0] == "given back" and "`spmd-launch up FILE` does it" in said[1] and begun[0].poll() == 0
    watch.end(said.append)
    assert len(said) == 2


def test_tries_that_were_given_machines_are_counted_and_the_last_is_told(begun: Begun) -> None:
    watch = HostWatch(max_times=2)
    for code in (NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, 0, GIVEN, NOT_GIVEN, GIVEN):
        begun.program = f"import sys; print('! tried'); sys.exit({code})"
        watch.hear(cluster(), ["h1"])
        begun[-1].wait()
    assert len(begun) == 7, "where a cloud has none free, it is asked again and again"
    wait_for(lambda: len(watch._lines) == 7)
    watch.news()
    watch.hear(cluster(), ["h1"])
    watch.hear(cluster(), ["h1"])
    [given_up] = watch.news()
    assert "h1: no more machines are asked for by this command, which may do so 2 time(s)" in given_up
    assert len(begun) == 7
    never = HostWatch(max_times=0)
    never.hear(cluster(), ["h1"])
    assert "0 time(s) (--max-preemptions)" in never.news()[0] and len(begun) == 7


def test_pauses_grow_while_the_cloud_gives_nothing(begun: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_watch, "FIRST_PAUSE_S", 60.0)
    watch, pauses = HostWatch(max_times=1), list[float]()
    begun.program = f"import sys; sys.exit({NOT_GIVEN})"
    for _ in range(6):
        watch._not_before = time.monotonic()
        watch.hear(cluster(), ["h1"])
        begun[-1].wait()
        watch.hear(cluster(), ["h1"])  # is told what the try has come to
        pauses.append(round(watch._not_before - time.monotonic(), -1))
    assert pauses == [60, 120, 240, 480, 600, 600] and len(begun) == 6


def test_what_is_not_given_back_in_time_may_cost_which_is_said(begun: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_watch, "PATIENCE_S", 0.3)
    monkeypatch.setattr(host_watch, "END_TIMEOUT_S", 2.0)
    begun.program = SLOW
    watch, said = HostWatch(max_times=2), list[str]()
    watch.hear(cluster(), ["h1"])
    wait_for(lambda: watch._lines)
    watch.end(said.append)
    assert said[0] == "! asking for new machines" and begun[0].poll() is not None
    text = "\n".join(said)
    assert "giving back what was asked for" in text
    assert "as long as it is there it costs: `spmd-launch status pod`, `spmd-launch down pod`" in text


def test_an_interrupt_leaves_the_giving_back_to_the_process(begun: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    begun.program = SLOW
    watch, said = HostWatch(max_times=2), list[str]()
    watch.hear(cluster(), ["h1"])
    wait_for(lambda: watch._lines)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(host_watch.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        watch.end(said.append)
    monkeypatch.undo()
    assert begun[0].poll() is None, "it goes on"
    assert f"process {begun[0].pid} goes on giving back what was asked for" in said[-1]
    watch.end(said.append)  # waits no more
