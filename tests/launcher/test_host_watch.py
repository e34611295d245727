"""When the process that brings lost hosts back is begun beside a follower, how often, and that it ends with it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.record import Cluster
from launcher import host_watch
from launcher.host_watch import HostWatch

# In the place of `launcher.mend_beside`: says that it has begun, and ends as that does, with its input.
PROGRAM = "import sys; print('! asking for new machines', flush=True); sys.stdin.read()"


class Paid:
    """As much of a cluster as is looked at."""

    name = "pod"

    def __init__(self, is_paid: bool):
        self.spec = self.provider = self
        self.is_paid = is_paid


def cluster(is_paid: bool = True) -> Cluster:
    return cast(Cluster, Paid(is_paid))


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[str]]]:
    """What was begun."""
    found: list[subprocess.Popen[str]] = []
    begin = subprocess.Popen

    def popen(words: list[str], **options: Any) -> "subprocess.Popen[str]":
        assert words[1:] == ["-P", "-m", "launcher.mend_beside", "pod"]
        found.append(begin([sys.executable, "-c", PROGRAM], **options))
        return found[-1]

    monkeypatch.setattr(host_watch.subprocess, "Popen", popen)
    yield found
    for process in found:
        process.kill()
        process.wait()


def test_it_is_begun_once_while_a_cloud_s_hosts_are_lost(begun: list[Any], tmp_path: Path) -> None:
    watch = HostWatch(max_times=2)
    watch.hear(cluster(), [])
    watch.hear(cluster(is_paid=False), ["h1"])
    assert not begun and watch.end() == ""
    watch.hear(cluster(), ["h1"])
    watch.hear(cluster(), ["h1"])
    assert len(begun) == 1
    while not (said := watch.news()):
        pass
    assert said == ["! asking for new machines"] and watch.news() == []
    assert "`spmd-launch up FILE` does it" in watch.end() and begun[0].poll() == 0
    assert watch.end() == ""


def test_it_is_begun_no_more_often_than_the_job_may_lose_hosts(begun: list[Any]) -> None:
    watch = HostWatch(max_times=2)
    for _ in range(4):
        watch.hear(cluster(), ["h1"])
        watch.end()
    assert len(begun) == 2
    HostWatch(max_times=0).hear(cluster(), ["h1"])
    assert len(begun) == 2
