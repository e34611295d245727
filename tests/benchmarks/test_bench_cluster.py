"""How the benchmarks run commands, and what they find that a fault has left, with real processes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench_cluster import Bench

from cluster.processes import MARKER, ProcessId

FORKED = """
import os, subprocess
from warm_command import run_forked
for words in (["--version"], ["submitt"], ["exec", "--", "x"]):
    done = run_forked(words, {**os.environ, "SPMD_LAUNCH_HOME": os.environ["HERE"]}, 30)
    print([done.returncode, done.stdout, done.stderr])
try:
    run_forked(["workloads"], dict(os.environ), 0.0)
except subprocess.TimeoutExpired as error:
    print(error)
import warm_command
from launcher.temporary import temporary_folder
warm_command.main = lambda: print(temporary_folder())
print(run_forked([], dict(os.environ), 30).stdout, end="")
"""
SLEEP = "import time; time.sleep(100)"
AGENT = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', '{SLEEP}', os.environ['WORD']]); {SLEEP}"
TEMPLATE = "launcher.rank.template"


def test_a_fork_does_what_a_command_does(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HERE": str(tmp_path)}
    command = [sys.executable, "-c", FORKED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    version, unknown, no_cluster, late, temporary = done.stdout.splitlines()
    assert version.startswith("[0, 'spmd-launch, version ")
    assert unknown.startswith("[2, '', \"error: no command 'submitt'; did you mean 'submit'?")
    assert no_cluster.startswith("[2, '', 'error: ")
    assert late == "Command '['workloads']' timed out after 0.0 seconds"
    assert "/spmd-launch-" in temporary and not Path(temporary).exists()


def test_ranks_of_every_attempt_are_found_and_templates_of_hosts_are_none(
    tmp_path: Path, children: list[subprocess.Popen[Any]]
) -> None:
    bench = Bench(tmp_path)
    marked = {**os.environ, MARKER: "c1"}

    def start(*words: str, env: dict[str, str]) -> None:
        children.append(subprocess.Popen([sys.executable, "-c", *words], env=env, start_new_session=True))

    start(SLEEP, env=dict(os.environ))
    holder = ProcessId.of(children[0].pid)
    assert holder is not None
    record = tmp_path / "home" / "clusters" / "faults" / "cluster.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"cluster_id": "c1", "holder": holder.to_json()}))
    start(
        AGENT, "ray::Agent", env={**marked, "WORD": TEMPLATE}
    )  # whose child is the template that it keeps for the next job
    time.sleep(0.5)
    try:
        assert bench.ranks_left() == []
        start(SLEEP, TEMPLATE, env={**os.environ, MARKER: "c2"})  # of another cluster
        start(SLEEP, TEMPLATE, env=marked)
        time.sleep(0.5)
        assert [words.split()[1] for words in bench.ranks_left()] == [str(children[-1].pid)]
    finally:
        for process in children:
            os.killpg(process.pid, 9)
