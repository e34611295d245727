"""The process that ends a cluster from inside: what it ends, and what it leaves to be read."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.farewell import Farewell
from cluster.leave import leave
from cluster.processes import MARKER
from cluster.record import cluster_folder
from tests.conftest import ROOT

SAID = Farewell(name="lab", cluster_id="c1", ended="2026-11-22T08:25:08+00:00", why="after 5s without a job", jobs={})


@pytest.mark.parametrize("folder_is_there", [True, False], ids=["whole", "its folder was removed"])
def test_its_processes_end_and_then_its_last_words_are_there(
    state_folder: Path, monkeypatch: pytest.MonkeyPatch, children: list[subprocess.Popen[Any]], folder_is_there: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = "import time; time.sleep(100)"
    ours, other = (
        subprocess.Popen([sys.executable, "-c", script], env=os.environ | {MARKER: cluster}) for cluster in ("c1", "c2")
    )
    children += [ours, other]
    state_folder.mkdir()
    if folder_is_there:
        cluster_folder("lab").mkdir(parents=True)
        SAID.prepare()
    leave("lab", "c1")
    assert Farewell.load("lab") is None
    assert ours.wait(60) < 0 and other.poll() is None
    deadline = time.monotonic() + 60
    while folder_is_there and Farewell.load("lab") != SAID:
        assert time.monotonic() < deadline
        time.sleep(0.1)
