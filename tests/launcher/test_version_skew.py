"""A client and a cluster of two versions: told in one sentence what was expected, what was found, and what to do."""

import json
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from cluster.processes import ProcessId
from cluster.record import Cluster
from cluster.spec import ClusterSpec, LocalProviderSpec
from launcher.code_copy import read_code, source_root
from launcher.errors import FailureError, UserError
from launcher.protocol import Connection, Line
from launcher.version_skew import digest_launcher, require_same_launcher
from tests.conftest import COMMAND, Cli


def _edited(tmp_path: Path, name: str) -> Path:
    """A copy of our packages in which one file differs."""
    root = tmp_path / "edited"
    for package in ("launcher", "cluster", "workloads"):
        shutil.copytree(source_root() / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    (root / name).write_text((root / name).read_text() + "# edited\n")
    return root


@pytest.mark.parametrize(
    ("file", "same"),
    [
        ("launcher/agent.py", False),
        ("launcher/rank/main.py", False),
        ("cluster/holder.py", False),
        ("launcher/cli/status.py", True),
        ("workloads/transformer/loop.py", True),
    ],
)
def test_only_the_code_that_hosts_run_counts(tmp_path: Path, file: str, same: bool) -> None:
    here, edited = (digest_launcher(read_code(root)) for root in (source_root(), _edited(tmp_path, file)))
    assert (here == edited) is same


def _cluster(digest: str) -> Cluster:
    return Cluster(
        spec=ClusterSpec(name="laptop", provider=LocalProviderSpec(), num_hosts=1, devices_per_host=1),
        cluster_id="x", holder=ProcessId.current(), gcs_address="", run_folder="", hosts=(), created="",
        launcher_digest=digest,
    )  # fmt: skip


def test_a_cluster_of_another_version_is_refused_with_both_and_what_to_do() -> None:
    code = read_code(source_root())
    here = digest_launcher(code)
    require_same_launcher(_cluster(here), code)
    for digest, got in (("f" * 64, "got ffffffffffff;"), ("", "got of a version that did not record it;")):
        with pytest.raises(UserError) as caught:
            require_same_launcher(_cluster(digest), code)
        said = str(caught.value)
        assert said.startswith("cluster 'laptop' was brought up by another version of spmd-launch")
        assert here[:12] in said and got in said
        assert said.endswith("`spmd-launch down laptop && spmd-launch up FILE`")


def test_what_an_answer_lacks_is_told_at_any_depth(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def answer() -> None:
            client, _ = server.accept()
            with client, client.makefile("rb") as lines:
                assert json.loads(lines.readline())["op"] == "status"
                client.sendall(b'{"hosts": [{"name": "h0"}]}\n')

        thread = threading.Thread(target=answer)
        thread.start()
        with Connection(path) as connection:
            found = connection.ask({"op": "status"})
        thread.join()
    assert found["hosts"][0]["name"] == "h0"
    with pytest.raises(FailureError, match=r"different versions .* expected .* 'suspect', got one with 'name'"):
        found["hosts"][0]["suspect"]
    with pytest.raises(FailureError, match=r"expected a message with 'queue', got one with 'hosts'; `spmd-launch down"):
        found["queue"]


def test_what_may_be_left_out_may_still_be_left_out() -> None:
    assert Line({"a": 1}).get("error") is None and "error" not in Line({})


@pytest.mark.cluster
def test_a_client_with_another_launcher_may_look_but_not_submit(cli: Cli, cluster: str, tmp_path: Path) -> None:
    other = {**cli.environment, "PYTHONPATH": str(_edited(tmp_path, "launcher/agent.py"))}

    def run(*arguments: str) -> tuple[int, str]:
        command = [*COMMAND, *arguments]  # in another folder: the working folder comes before PYTHONPATH
        done = subprocess.run(command, env=other, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    for arguments in (["submit", "psum-check", "--name", "skewed"], ["up", str(cli.home / f"{cluster}.yaml")]):
        code, said = run(*arguments)
        assert code == 2
        assert f"cluster {cluster!r} was brought up by another version of spmd-launch: expected launcher code" in said
    code, said = run("status", cluster)
    assert code == 0 and f"cluster {cluster}: " in said
    assert not (cli.home / "jobs" / "skewed").exists()
