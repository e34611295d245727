"""A job that is followed while nobody answers: its cluster has died, or is taking itself down."""

import dataclasses
import itertools
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.farewell import Farewell
from cluster.processes import ProcessId
from cluster.record import Cluster
from cluster.spec import ClusterSpec, LocalProviderSpec
from launcher.errors import FailureError
from launcher.job import JobState
from launcher.snapshots import DIED_S, RECONNECT_PERIOD_S, snapshots


@pytest.fixture
def dead(state_folder: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose holder has ended, that nobody has taken down, and whose supervisor answers once."""
    holder = subprocess.Popen(["sleep", "100"])
    identity = ProcessId.of(holder.pid)
    assert identity is not None
    holder.kill()
    holder.wait()
    (state_folder / "clusters" / "laptop").mkdir(parents=True)
    cluster = Cluster(
        spec=ClusterSpec(name="laptop", provider=LocalProviderSpec(), num_hosts=1, devices_per_host=1),
        cluster_id="c1", holder=identity, gcs_address="", run_folder=str(tmp_path), hosts=(), created="",
    )  # fmt: skip
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(cluster.socket))
        server.listen()

        def answer_once() -> None:
            client, _ = server.accept()
            with client, client.makefile("rb") as lines:
                lines.readline()
                client.sendall(b'{"state": "RUNNING"}\n')
            server.close()

        thread = threading.Thread(target=answer_once, daemon=True)
        thread.start()
        yield cluster
        thread.join(10)


def test_a_supervisor_that_ends_before_the_first_answer_is_asked_again(dead: Cluster) -> None:
    with subprocess.Popen(["sleep", "100"]) as holder:
        identity = ProcessId.of(holder.pid)
        assert identity is not None
        cluster = dataclasses.replace(dead, holder=identity)
        with socket.socket(socket.AF_UNIX) as killed:  # its connections are reset, as of a process that is killed
            cluster.socket.rename(cluster.socket.with_suffix(".next"))
            killed.bind(str(cluster.socket))
            killed.listen()
            threading.Timer(0.5, lambda: _end(killed, cluster.socket)).start()
            followed = snapshots(cluster, "j")
            assert next(followed)["state"] == "RUNNING"
        holder.kill()


def _end(killed: socket.socket, path: Path) -> None:
    path.with_suffix(".next").replace(path)
    killed.accept()[0].close()  # with a request that nobody has read


def test_a_cluster_that_has_died_is_told_of_at_once(dead: Cluster) -> None:
    began = time.monotonic()
    words = rf"cluster 'laptop' has died: process {dead.holder.pid}, .*`spmd-launch submit --resume j`"
    with pytest.raises(FailureError, match=words):
        for snapshot in snapshots(dead, "j"):
            assert snapshot["state"] == "RUNNING"
    assert DIED_S <= time.monotonic() - began < DIED_S + 20.0


def test_one_that_takes_itself_down_is_waited_for(dead: Cluster) -> None:
    said = Farewell(
        name="laptop", cluster_id="c1", ended="2026-11-22T08:25:08+00:00", why="after 5s without a job",
        jobs={"j": {"state": JobState.CANCELLED, "message": "m"}},
    )  # fmt: skip
    said.prepare()
    followed = snapshots(dead, "j")
    for snapshot in itertools.islice(followed, int((DIED_S + 1.0) / RECONNECT_PERIOD_S)):
        assert snapshot["state"] == "RUNNING"
    said.save()
    assert list(followed)[-1]["state"] == "CANCELLED"
