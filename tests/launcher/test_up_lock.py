"""Several commands that would bring up one cluster: one does, and the others wait, look again, and judge nothing."""

import dataclasses
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from cluster.errors import ClusterError
from cluster.provider import Trouble
from cluster.record import Cluster
from cluster.spec import LocalProviderSpec
from launcher import bringup, lost_head
from launcher.errors import FailureError
from launcher.lost_head import HeadLostError, HeadWatch
from launcher.up_lock import alone, is_held
from tests.cluster.test_record import _cluster, _save
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("state_folder")

HOLD = """
import time
from launcher.up_lock import alone
with alone("laptop", print):
    print("in", flush=True)
    time.sleep(60)
"""


def holder(children: list[subprocess.Popen[Any]]) -> subprocess.Popen[str]:
    """Another command that brings the cluster up, until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    children.append(process)
    assert process.stdout is not None and process.stdout.readline() == "in\n"
    return process


def test_who_waits_is_told_and_a_killed_command_is_not_waited_for(children: list[subprocess.Popen[Any]]) -> None:
    assert not is_held("laptop")
    said: list[str] = []
    with alone("laptop", said.append):
        assert is_held("laptop") and not is_held("other")
    assert said == [] and not is_held("laptop")
    other = holder(children)
    assert is_held("laptop")

    def say(line: str) -> None:
        said.append(line)
        other.kill()

    with alone("laptop", say):
        assert other.wait(60) < 0
    assert said == ["another command brings up laptop: waiting until it is done"]


def test_two_ups_do_not_make_machines_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    class Cloud:
        """Lists nothing, and takes its time to refuse machines."""

        resumes = True

        def find(self) -> None:
            steps.append("find")

        def create(self, *_: Any) -> Cluster:
            steps.append("create")
            time.sleep(0.3)
            raise ClusterError("no machine is free")

        def delete(self, *_: Any, **__: Any) -> list[str]:
            steps.append("delete")
            return []

        def close(self) -> None: ...

    monkeypatch.setattr(bringup, "provider_for", lambda spec: Cloud())

    def up() -> None:
        with pytest.raises(FailureError, match="no machine is free"):
            bringup.up(_cluster().spec, lambda _: None)

    threads = [threading.Thread(target=up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps == ["find", "create", "delete"] * 2, "the second looks when the first is done"


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A paid cluster on record, whose cloud says that somebody has deleted its head."""
    monkeypatch.setattr(LocalProviderSpec, "is_paid", True)
    deleted = Trouble(text="slice pod-0: DELETING", head_is_gone=True, by_order=True)
    monkeypatch.setattr(lost_head, "_ask", lambda cluster: [deleted])
    cluster = _cluster()
    _save(cluster)
    return cluster


def test_a_head_that_another_command_deletes_to_bring_it_back_is_not_judged(
    lost: Cluster, children: list[subprocess.Popen[Any]]
) -> None:
    with pytest.raises(FailureError, match="slice pod-0: DELETING") as judged:
        HeadWatch(lost).require_hope()
    assert not isinstance(judged.value, HeadLostError)
    other = holder(children)
    HeadWatch(lost).require_hope()  # that command only looks, so far
    (lost.folder / "cluster.json").unlink()  # as when it begins to make the cluster anew
    with pytest.raises(HeadLostError, match="another command here brings it up anew"):
        HeadWatch(lost).require_hope()
    dataclasses.replace(lost, cluster_id="0" * 32).save()
    other.kill()
    other.wait()
    with pytest.raises(HeadLostError, match="another command here brings it up anew"):
        HeadWatch(lost).require_hope()


def test_a_cluster_that_another_command_has_brought_back_costs_no_budget(
    lost: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def up(spec: Any, say: Any) -> bringup.BringUp:
        asked.append(spec.name)
        return bringup.BringUp(new, (), (), 0.0)

    new = dataclasses.replace(lost, cluster_id="0" * 32)
    new.save()
    monkeypatch.setattr(lost_head, "up", up)
    assert lost_head.bring_back(lost, "no-record-of-it-is-read", "lost", print) == new and asked == ["laptop"]
