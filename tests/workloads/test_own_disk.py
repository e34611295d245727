"""Checkpoints of hosts that share no disk: every shard is on the head too, and any host can go on from there."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks import run_ranks
from tests.workloads.own_disk_programs import on_own_disk
from workloads import checkpoint
from workloads.context import Context
from workloads.storage.folders import find_folders

PROGRAMS = "tests.workloads.own_disk_programs"
AXES = {"a": 2, "b": 2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Steps 5, 10 and 15 on two hosts of two devices, of which two stay: their digest, and the folder of all disks."""
    folder = tmp_path_factory.mktemp("own-disks")
    values = run_ranks(
        f"{PROGRAMS}:save", num_hosts=2, devices_per_host=2, folder=folder, axes=AXES, steps=[5, 10, 15],
        context={"keep": 2},
    )  # fmt: skip
    return values[0]["digest"], folder


@pytest.fixture
def disks(saved: tuple[str, Path], tmp_path: Path) -> Path:
    """A copy of all disks: `storage` is the head's."""
    for name in ("storage", "host-0", "host-1"):
        shutil.copytree(saved[1] / name, tmp_path / name)
    return tmp_path


def restore(disks: Path, num_hosts: int = 2, devices_per_host: int = 2) -> list[dict[str, Any]]:
    arguments = {"axes": AXES, "step": None}
    return run_ranks(
        f"{PROGRAMS}:restore", num_hosts=num_hosts, devices_per_host=devices_per_host, folder=disks, **arguments
    )


def events(folder: Path, rank: int, kind: str) -> list[dict[str, Any]]:
    said = json.loads((folder / f"value-{rank}.json").read_text())["events"]
    return [event for event in said if event["type"] == kind]


def test_each_host_has_its_own_shards_and_the_head_has_all(saved: tuple[str, Path]) -> None:
    files = {}
    for disk in ("storage", "host-0/storage", "host-1/storage"):
        assert sorted(path.name[:13] for path in (saved[1] / disk).iterdir()) == ["step_00000010", "step_00000015"]
        (newest,) = (saved[1] / disk).glob("step_00000015*")
        files[disk] = {str(path.relative_to(newest)) for path in newest.rglob("*") if path.is_file()}
    first, second = files["host-0/storage"], files["host-1/storage"]
    assert first and second and not first & second
    assert first | second < files["storage"]
    (newest,) = (saved[1] / "storage").glob("step_00000015*")
    manifest = json.loads((newest / "manifest.json").read_text())
    assert manifest["files"].keys() == files["storage"] - {"manifest.json"}
    assert all(len(facts["sha256"]) == 64 for facts in manifest["files"].values())
    event = events(saved[1], 0, "checkpoint")[-1]
    assert event["copied_bytes"] == sum(manifest["files"][name]["size"] for name in first | second)


def test_a_lost_host_loses_nothing(saved: tuple[str, Path], disks: Path) -> None:
    shutil.rmtree(disks / "host-1")
    assert [(found["step"], found["digest"]) for found in restore(disks)] == [(15, saved[0])] * 2
    (newest,) = (disks / "storage").glob("step_00000015*")
    total = sum(facts["size"] for facts in json.loads((newest / "manifest.json").read_text())["files"].values())
    (lacked,), (all_of_it,) = (events(disks, rank, "checkpoint-fetched") for rank in (0, 1))
    assert 0 < lacked["bytes"] < total and (all_of_it["bytes"], all_of_it["damaged"]) == (total, [])


@pytest.mark.slow
def test_another_layout_restores_the_same_bits(saved: tuple[str, Path], disks: Path) -> None:
    (found,) = restore(disks, num_hosts=1, devices_per_host=4)
    assert (found["step"], found["digest"]) == (15, saved[0])


def test_a_damaged_copy_is_repaired_and_damage_of_both_falls_back(saved: tuple[str, Path], disks: Path) -> None:
    files = {}
    for step, on_head in ((15, True), (10, False)):
        (local,) = (disks / "host-1/storage").glob(f"step_{step:08d}*")
        path = max((path for path in local.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        for copy in (path, disks / "storage" / path.relative_to(disks / "host-1/storage"))[: 1 + on_head]:
            data = bytearray(copy.read_bytes())
            data[len(data) // 2] ^= 1
            copy.write_bytes(data)
        files[step] = str(path.relative_to(local))
    assert [(found["step"], found["digest"]) for found in restore(disks)] == [(10, saved[0])] * 2
    (skipped,) = events(disks, 0, "checkpoint-skipped")
    assert skipped["step"] == 15
    assert f"{files[15]} (with large) is not what was written, on the head" in skipped["why"]
    (repaired,) = [event for event in events(disks, 1, "checkpoint-fetched") if event["damaged"]]
    assert repaired["step"] == 10 and repaired["damaged"] == [files[10]]


def test_a_step_that_is_damaged_on_the_head_takes_no_place_among_those_that_are_kept(tmp_path: Path) -> None:
    context = on_own_disk(Context.local(tmp_path, keep=2))
    state = {"w": np.arange(6.0)}
    for step in (41, 43):
        checkpoint.save(context, step, state, {})
    for copy in (tmp_path / "checkpoints", tmp_path / "host-0" / "checkpoints"):
        (newest,) = copy.glob("step_00000043*")
        (newest / "state" / "_METADATA").unlink()
    found = checkpoint.resume(context, lambda *_: state)
    assert found and found.step == 41
    assert checkpoint.save(context, 60, state, {})
    assert [folder.step for folder in find_folders(str(tmp_path / "checkpoints"))] == [60, 41]


def test_a_disk_without_room_for_the_checkpoint_does_not_cost_it(disks: Path) -> None:
    shutil.rmtree(disks / "host-1")
    arguments = {"num_hosts": 2, "devices_per_host": 2, "folder": disks, "axes": AXES}
    said = run_ranks(f"{PROGRAMS}:restore_on_a_full_disk", **arguments, full_on=1)
    assert said[0] == said[1] and "2 skipped: step 15: rank 1 on host host-1: it could not be brought" in said[0]
    assert "File too large" in said[0]


@pytest.mark.slow
def test_the_heads_copy_is_a_checkpoint_as_on_a_shared_storage(saved: tuple[str, Path], disks: Path) -> None:
    arguments = {"num_hosts": 2, "devices_per_host": 2, "folder": disks, "axes": AXES, "step": None}
    ranks = run_ranks("tests.workloads.checkpoint_programs:restore", **arguments)
    assert [(found["step"], found["digest"]) for found in ranks] == [(15, saved[0])] * 2
