"""What `--inject` does to a checkpoint and to the state, and what it says of it."""

import concurrent.futures
import json
import multiprocessing
import signal
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launcher.faults import parse_fault
from launcher.rank.flip import flip
from launcher.rank.inject import PATIENCE_S, Injector, drag_s
from launcher.watchdog import Bounds
from workloads.agreement.launches import LaunchLog
from workloads.context import Context
from workloads.exchange import Exchange
from workloads.storage.manifest import MANIFEST


def damage(storage: Path) -> None:
    fault = parse_fault("corrupt-checkpoint rank=0 step=1")

    def say(event: dict[str, Any]) -> None:
        (storage / f"{event['type']}.json").write_text(json.dumps(event))

    Injector([fault], rank=0, storage=str(storage), say=say)(1, None)


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
    said = json.loads((tmp_path / "damaged.json").read_text())
    assert said == {"type": "damaged", "step": 2, "path": str(steps[1] / "data")}
    assert (steps[0] / "data").read_bytes() == bytes(1000) != (steps[1] / "data").read_bytes()


def room(folder: Path) -> list[bool]:
    """Whether there is room: before, on a full disk, after news of an older checkpoint, and of one that has met it."""
    injector = Injector([parse_fault("disk-full rank=0 step=9")], rank=0, storage=str(folder), say=lambda event: None)

    def has_room() -> bool:
        try:
            (folder / "data").write_bytes(b"x")
        except OSError:
            return False
        return True

    found = [has_room()]
    injector(10, None)
    found.append(has_room())
    for step in (8, 16):
        injector.saved(step, True)
        found.append(has_room())
    return found


def test_a_disk_is_full_until_a_checkpoint_has_met_it(tmp_path: Path) -> None:
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        assert other.submit(room, tmp_path).result(60) == [True, False, False, True]


def test_without_a_checkpoint_there_is_nothing_to_damage_and_nobody_is_killed(tmp_path: Path) -> None:
    other = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with other, pytest.raises(RuntimeError, match="there is no checkpoint yet in "):
        other.submit(damage, tmp_path).result(60)


@pytest.mark.parametrize("kind", ["skip-collective", "swap-programs", "other-program"])
def test_where_no_launch_can_go_astray_the_rank_says_so(tmp_path: Path, kind: str) -> None:
    injector = Injector([parse_fault(f"{kind} rank=0 step=1")], rank=0, storage="", say=lambda event: None)
    injector.launches = Context.local(tmp_path).launches
    with pytest.raises(RuntimeError, match=f"--inject {kind}: this workload has compiled no program that spans"):
        injector(1, None)


def test_a_launch_that_never_came_is_told_at_the_end() -> None:
    said: list[dict[str, Any]] = []
    injector = Injector([parse_fault("swap-programs rank=0 step=9")], rank=0, storage="", say=said.append)
    injector.launches = log = LaunchLog(Exchange(0, 1))
    log.programs = {"step": None, "sum": None}  # type: ignore[dict-item]
    injector.at_end()
    injector(10, None)
    assert [event["type"] for event in said] == ["injected"]
    injector.at_end()
    assert said[-1]["text"].startswith("--inject 'swap-programs rank=0 step=9' did not happen: ")
    log.fault = None  # as when it has happened
    injector.at_end()
    assert len(said) == 2


def test_another_environment_is_on_record_from_the_start() -> None:
    said: list[dict[str, Any]] = []
    fault = parse_fault("other-env rank=0 step=5")
    before = jax.config.jax_default_matmul_precision
    try:
        injector = Injector([fault], rank=0, storage="", say=said.append)
        injector.at_start()
        assert jax.config.jax_default_matmul_precision == "bfloat16"
    finally:
        jax.config.update("jax_default_matmul_precision", before)
    assert said == [{"type": "injected", "fault": fault.to_json(), "step": 0}]
    assert injector(5, "state") == "state", "it has happened"


def test_a_rank_far_from_the_supervisor_tells_that_it_is_to_be_killed() -> None:
    said: list[dict[str, Any]] = []
    fault = parse_fault("kill-supervisor step=5")
    assert Injector([fault], rank=0, storage="", say=said.append)(5, "state") == "state"
    assert said == [{"type": "injected", "fault": fault.to_json(), "step": 5}]


@pytest.mark.parametrize("array", [np.zeros((2, 3), np.float32), jnp.zeros((2, 3), jnp.float32)])
def test_a_flipped_bit_is_told_with_its_place_in_the_whole_leaf(array: Any) -> None:
    said: list[dict[str, Any]] = []
    fault = parse_fault("flip-bit device=0 step=1 leaf=params/w index=4 bit=31")
    state = flip({"params": {"w": array + 1}}, fault, said.append)
    place = {"leaf": "params/w", "device": 0, "index": 4, "element": [1, 1], "bit": 31}
    assert said == [{"type": "flipped", **place, "in_memory": isinstance(array, np.ndarray)}]
    assert np.asarray(state["params"]["w"]).tolist() == [[1, 1, 1], [1, -1, 1]]


def test_a_slow_rank_never_sleeps_so_long_that_it_stands_still() -> None:
    assert drag_s(0.2, 4.0) == pytest.approx(0.6)
    assert drag_s(3.5, 4.0) == PATIENCE_S < Bounds().stuck_s  # a step in which a program was compiled
