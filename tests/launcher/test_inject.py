"""What `--inject` does to a checkpoint."""

import multiprocessing
import signal
import threading
import time
from pathlib import Path

from launcher.faults import parse_fault
from launcher.rank.inject import Injector
from workloads.storage.manifest import MANIFEST


def damage(storage: Path) -> None:
    fault = parse_fault("corrupt-checkpoint rank=0 step=1")
    Injector([fault], rank=0, storage=str(storage), say=lambda event: None)(1, None)


def test_a_save_that_is_under_way_is_waited_for_and_damaged(tmp_path: Path) -> None:
    steps = [tmp_path / "step_1", tmp_path / "step_2"]
    for step in steps:
        step.mkdir()
        (step / "data").write_bytes(bytes(1000))
    (steps[0] / MANIFEST).write_text("{}")

    def commit() -> None:
        time.sleep(0.5)
        (steps[1] / MANIFEST).write_text("{}")

    threading.Thread(target=commit).start()
    rank = multiprocessing.get_context("spawn").Process(target=damage, args=(tmp_path,))
    rank.start()
    rank.join(60)
    assert rank.exitcode == -signal.SIGKILL
    assert (steps[0] / "data").read_bytes() == bytes(1000) != (steps[1] / "data").read_bytes()
