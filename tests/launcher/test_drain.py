"""What `down` asks for before it ends a cluster: real sockets and a real process as the holder, no Ray."""

import contextlib
import dataclasses
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cluster.errors import ClusterError
from cluster.farewell import Farewell
from cluster.processes import ProcessId
from cluster.record import Cluster
from cluster.spec import ClusterSpec, LocalProviderSpec
from launcher import drain as module
from launcher.drain import drain
from launcher.errors import FailureError, UserError
from launcher.job_folder import JobFolder
from tests.conftest import job_spec

DRAINED = b'{"cancelled": []}\n'
RECORD = {"job": "job", "job_id": "b7", "path": "job.json",
          "record": {"name": "job", "cluster": "lab", "state": "SUCCEEDED", "spec": job_spec().to_json()}}  # fmt: skip
PIECE = json.dumps(RECORD).encode() + b"\n"


@pytest.fixture
def holder(children: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    children.append(subprocess.Popen(["sleep", "100"]))
    return children[-1]


@pytest.fixture
def lab(
    state_folder: Path, tmp_path: Path, holder: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    """A cluster of this machine, whose supervisor does not listen yet."""
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    monkeypatch.setattr(module, "PAUSE_S", 0.1)
    identity = ProcessId.of(holder.pid)
    assert identity is not None
    return Cluster(
        spec=ClusterSpec(name="lab", provider=LocalProviderSpec(), num_hosts=1, devices_per_host=1),
        cluster_id="c1", holder=identity, gcs_address="", run_folder=str(tmp_path), hosts=(), created="",
    )  # fmt: skip


@pytest.fixture
def remote(lab: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The same, seen from elsewhere; there is a way to its head, which has no last words."""
    monkeypatch.setattr(Cluster, "problem", lambda self: "")
    monkeypatch.setattr(Farewell, "ask_head", lambda cluster: None)
    return dataclasses.replace(lab, head_socket="/head/supervisor.sock")


@contextlib.contextmanager
def supervisor(cluster: Cluster, answers: Sequence[bytes]) -> Iterator[None]:
    """Answers one connection after the other, closing each; then nobody listens."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(cluster.socket))
        server.listen()

        def serve() -> None:
            for answer in answers:
                client, _ = server.accept()
                with client, client.makefile("rb") as lines:
                    lines.readline()
                    client.sendall(answer)
            cluster.socket.unlink()
            server.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(10)
        assert not thread.is_alive()


def nothing() -> Cluster | None:
    raise AssertionError("nobody else need be asked")


def test_a_supervisor_that_does_not_come_back_keeps_the_cluster_up(lab: Cluster) -> None:
    said: list[str] = []
    words = (
        r"^cluster 'lab' is up still: the cluster's supervisor does not answer .*; whether jobs run on it is not "
        r"known, .*`spmd-launch down lab --force` takes it down all the same"
    )
    with pytest.raises(FailureError, match=words):
        drain(lab, nothing, said.append, force=False)
    assert [line.partition(";")[2] for line in said] == [" asking again for up to 1 s"]
    began = time.monotonic()
    drain(lab, nothing, said.append, force=True)
    assert time.monotonic() - began < 1.0 and said[-1].endswith("ending the cluster all the same")


def test_a_supervisor_that_is_being_started_again_is_waited_for(lab: Cluster) -> None:
    timer = threading.Timer(0.5, lambda: started.enter_context(supervisor(lab, [DRAINED])))
    with contextlib.ExitStack() as started:
        timer.start()
        drain(lab, nothing, lambda _: None, force=False)
        timer.join()


def test_jobs_that_run_are_in_the_way_at_once(lab: Cluster) -> None:
    refusal = b'{"error": {"kind": "user", "message": "has 1 job(s)"}}\n'
    with supervisor(lab, [refusal]), pytest.raises(UserError, match=r"has 1 job\(s\)"):
        drain(lab, nothing, lambda _: None, force=False)


def test_a_cluster_that_dies_meanwhile_is_taken_down(lab: Cluster, holder: subprocess.Popen[bytes]) -> None:
    said: list[str] = []
    threading.Timer(0.3, lambda: (holder.kill(), holder.wait())).start()
    drain(lab, nothing, said.append, force=False)
    assert said[-1].endswith("ending the cluster all the same")
    drain(lab, nothing, said.append, force=False)
    assert len(said) == 2, "of one that is dead nothing is asked"


def test_a_copy_that_breaks_off_is_made_again(remote: Cluster) -> None:
    with supervisor(remote, [DRAINED, PIECE, DRAINED, PIECE[:20], DRAINED, PIECE + b"{}\n"]):
        drain(remote, lambda: remote, lambda _: None, force=False)


def test_a_supervisor_that_ends_late_in_a_long_copy_is_waited_for_as_long(
    remote: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    took_s = iter([1.5, 0.0])
    refresh = module.refresh

    def copy(cluster: Cluster) -> None:
        time.sleep(next(took_s))
        refresh(cluster)

    monkeypatch.setattr(module, "refresh", copy)
    with supervisor(remote, [DRAINED, PIECE[:20], DRAINED, PIECE + b"{}\n"]):
        drain(remote, lambda: remote, lambda _: None, force=False)


def test_a_way_that_is_cut_meanwhile_is_no_end_of_the_cluster(remote: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = iter(["", *["the head cannot be reached"] * 9])
    monkeypatch.setattr(Cluster, "problem", lambda self: next(problems))
    with pytest.raises(FailureError, match="the head cannot be reached; whether jobs run on 'lab' is not known"):
        drain(remote, nothing, lambda _: None, force=False)


def test_a_copy_that_stays_incomplete_keeps_the_cluster_up(remote: Cluster, state_folder: Path) -> None:
    words = r"as far as job\.json of job job; no job of it runs, but what .* of their records is not complete"
    with supervisor(remote, [DRAINED, PIECE] * 40):
        with pytest.raises(FailureError, match=words):
            drain(remote, lambda: remote, lambda _: None, force=False)
        drain(remote, nothing, lambda _: None, force=True)
        while remote.socket.exists():  # what nobody has asked for
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
                client.connect(str(remote.socket))
                client.sendall(b"{}\n")
                client.recv(1)
    assert JobFolder(state_folder / "jobs" / "job").state() == "SUCCEEDED"


@pytest.mark.parametrize("there", ["nothing", "another"])
def test_a_head_that_has_it_no_more_is_no_reason_to_wait(remote: Cluster, there: str) -> None:
    """As after its machine has booted again, with or without somebody else's cluster of that name."""
    found = None if there == "nothing" else dataclasses.replace(remote, cluster_id="c2")
    said: list[str] = []
    drain(remote, lambda: found, said.append, force=False)
    assert len(said) == 1 and said[0].endswith("ending the cluster all the same")


def test_where_it_cannot_be_told_whether_it_lives_it_stays(remote: Cluster) -> None:
    def find() -> Cluster | None:
        raise ClusterError("the cloud does not answer")

    with pytest.raises(FailureError, match="is up still"):
        drain(remote, find, lambda _: None, force=False)
