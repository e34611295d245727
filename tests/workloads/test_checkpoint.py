"""Checkpoints: whole or invisible, bit-exact on another layout, and refused in words where they do not fit."""

import dataclasses
import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ranks import run_ranks
from workloads import checkpoint
from workloads.computed_with import computed_with, differences
from workloads.context import Context
from workloads.durable import as_path
from workloads.errors import FencedError, StorageError
from workloads.fence import write_fence
from workloads.storage.folders import StepFolder, find_folders, superseded
from workloads.storage.manifest import digest_json
from workloads.storage.stores import Delivered

PROGRAMS = "tests.workloads.checkpoint_programs"
AXES = {"a": 2, "b": 2}


def _state() -> dict[str, Any]:
    return {"w": jnp.arange(6.0).reshape(2, 3), "key": jax.random.key(3), "host": np.arange(4), "count": 7}


def _restore(context: Context, step: int | None = None, state: Any = None) -> checkpoint.Restored | None:
    return checkpoint.restore(context, lambda *_: state or _state(), step)


def _of_type(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]


def _events(folder: Path, rank: int, kind: str) -> list[dict[str, Any]]:
    return _of_type(json.loads((folder / f"value-{rank}.json").read_text())["events"], kind)


# --- layouts


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Steps 5, 10 and 15 on two hosts of two devices: what they say, and the storage."""
    folder = tmp_path_factory.mktemp("saved")
    values = run_ranks(
        f"{PROGRAMS}:save", num_hosts=2, devices_per_host=2, folder=folder, axes=AXES, steps=[5, 10, 15],
        context={"keep": 2},
    )  # fmt: skip
    assert values[0] == values[1]
    assert [event["step"] for event in _events(folder, 0, "checkpoint")] == [5, 10, 15]
    return values[0], folder / "storage"


@pytest.mark.parametrize(("num_hosts", "axes"), [(1, {"a": 4, "b": 1}), (2, {"a": 1, "b": 4}), (1, {"a": 1, "b": 1})])
def test_saved_on_2x2_and_restored_elsewhere_bit_for_bit(
    saved: tuple[dict[str, Any], Path], tmp_path: Path, num_hosts: int, axes: dict[str, int]
) -> None:
    said, storage = saved
    assert said["latest"] == 15
    (tmp_path / "storage").symlink_to(storage)
    devices = axes["a"] * axes["b"] // num_hosts
    ranks = run_ranks(
        f"{PROGRAMS}:restore", num_hosts=num_hosts, devices_per_host=devices, folder=tmp_path, axes=axes, step=None
    )
    for found in ranks:
        assert found["step"] == 15
        assert found["digest"] == said["digest"], "saved as it was, though donated and changed meanwhile"
        assert found["metadata"] == {"step": 15, "words": ["a", "é"]}
        assert all(found["shardings"].values())
        assert found["same_draw"]
        assert found["types"] == ["ndarray", "Moments", "int", "int64"]
        assert found["order"] == ">f8"


def test_all_ranks_fall_back_together(saved: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """The arrays of step 15 are damaged, their sizes are not, and step 10 is whole."""
    shutil.copytree(saved[1], tmp_path / "storage")
    (folder,) = (tmp_path / "storage").glob("step_00000015*")
    for data in folder.glob("state/**/d/*"):
        content = data.read_bytes()
        data.write_bytes(content[:-50] + bytes(byte ^ 255 for byte in content[-50:]))
    arguments = {"num_hosts": 2, "devices_per_host": 2, "folder": tmp_path, "axes": AXES, "step": None}
    ranks = run_ranks(f"{PROGRAMS}:restore", **arguments)
    assert [(found["step"], found["digest"]) for found in ranks] == [(10, saved[0]["digest"])] * 2
    (skipped,) = _events(tmp_path, 0, "checkpoint-skipped")
    assert (skipped["step"], skipped["path"]) == (15, str(folder))


def test_the_newest_steps_are_kept(saved: tuple[dict[str, Any], Path]) -> None:
    folders = sorted(path.name[:13] for path in saved[1].iterdir())
    assert folders == ["step_00000010", "step_00000015"]


# --- one process


def test_event_says_step_path_bytes_and_seconds(context: Context, events: list[dict[str, Any]]) -> None:
    path = checkpoint.save(context, 40, _state(), {})
    (event,) = _of_type(events, "checkpoint")
    assert (event["step"], event["path"]) == (40, path)
    assert event["bytes"] == 6 * 4 + 2 * 4 + 4 * 8 + 8
    assert 0 < event["blocked_s"] <= event["seconds"]
    assert events[0] == {"type": "phase", "phase": "checkpoint"}
    assert Path(path).is_dir()


def test_manifest_says_who_wrote_what(context: Context) -> None:
    context = dataclasses.replace(context, config={"width": 3})
    path = checkpoint.save(context, 40, _state(), {"words": "a"})
    manifest = json.loads((Path(path) / "manifest.json").read_text())
    assert (manifest["step"], manifest["attempt"], manifest["attempt_id"], manifest["seed"]) == (40, 1, "local", 0)
    assert (manifest["metadata"], manifest["config"]) == ({"words": "a"}, {"width": 3})
    assert manifest["leaves"]["w"]["dtype"] == "float32" and manifest["leaves"]["w"]["shape"] == [2, 3]
    on_disk = {str(file.relative_to(path)): file.stat().st_size for file in Path(path).rglob("*") if file.is_file()}
    del on_disk["manifest.json"]
    assert {name: facts["size"] for name, facts in manifest["files"].items()} == on_disk


@pytest.mark.parametrize(
    ("now", "changes"),
    [
        ({}, []),
        ({"config": {"rows": 8192, "steps": 10}}, ["rows=4096 (now 8192)"]),
        ({"config": {"rows": 4096}, "seed": 5}, ["seed=0 (now 5)", "steps=10 (now -)"]),
        ({"config": {}}, []),  # not known
    ],
)
def test_a_resume_tells_of_other_parameters_and_another_seed_once(
    context: Context, events: list[dict[str, Any]], now: dict[str, Any], changes: list[str]
) -> None:
    context = dataclasses.replace(context, config={"rows": 4096, "steps": 10})
    checkpoint.save(context, 1, _state(), {})
    context = dataclasses.replace(context, **now)
    found = checkpoint.resume(context, lambda *_: _state())
    assert found and sorted(found.changes) == changes
    words = [f"goes on from a checkpoint (step 1) that was made with {', '.join(found.changes)}"] if changes else []
    assert [event["text"] for event in _of_type(events, "warning")] == words
    assert checkpoint.resume(context, lambda *_: _state(), tell_changes=False)
    assert len(_of_type(events, "warning")) == len(words), "the workload has compared them itself"


def test_a_manifest_of_an_earlier_version_is_read(context: Context) -> None:
    path = Path(checkpoint.save(context, 1, _state(), {})) / "manifest.json"
    manifest = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("sha256", "config")}
    manifest["config_sha256"] = 64 * "0"
    manifest["of_a_later_version"] = {}
    path.write_text(json.dumps({**manifest, "sha256": digest_json(manifest)}))
    found = checkpoint.resume(dataclasses.replace(context, config={"rows": 1}), lambda *_: _state())
    assert found and found.changes == []


def test_a_step_that_is_there_is_replaced_and_others_stay(context: Context) -> None:
    checkpoint.save(context, 1, _state(), {"by": "first"})
    checkpoint.save(context, 2, _state(), {"by": "first"})
    checkpoint.save(context, 2, {**_state(), "count": 8}, {"by": "second"})
    assert checkpoint.latest_step(context.storage) == 2
    first, second = _restore(context, 1), _restore(context)
    assert first and first.metadata == {"by": "first"}
    assert second and (second.step, second.state["count"], second.metadata) == (2, 8, {"by": "second"})
    np.testing.assert_array_equal(second.state["w"], _state()["w"])
    assert jax.random.key_impl(second.state["key"]) == jax.random.key_impl(_state()["key"])
    assert len(list(Path(context.storage).iterdir())) == 2


def test_a_half_written_step_is_named_and_skipped_and_removed_by_the_next_save(
    context: Context, events: list[dict[str, Any]]
) -> None:
    checkpoint.save(context, 1, _state(), {})
    half = Path(checkpoint.save(context, 2, _state(), {}))
    (half / "manifest.json").unlink()  # what a kill during a save leaves
    assert checkpoint.latest_step(context.storage) == 1
    found = _restore(context)
    assert found and found.step == 1
    (skipped,) = _of_type(events, "checkpoint-skipped")
    assert (skipped["step"], skipped["path"], skipped["why"]) == (
        2, str(half), "half-written: it has no manifest.json"
    )  # fmt: skip
    checkpoint.save(context, 3, _state(), {})
    assert not half.exists()


def test_metadata_that_json_cannot_hold_is_refused_before_anything_is_written(context: Context) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        checkpoint.save(context, 2, _state(), {"no": object()})
    assert not Path(context.storage).exists()


def test_nothing_there_is_said_and_a_missing_step_names_what_there_is(
    context: Context, events: list[dict[str, Any]]
) -> None:
    assert checkpoint.latest_step(context.storage) is None
    assert checkpoint.resume(context, lambda *_: _state()) is None
    assert events[-1] == {"type": "resumed", "step": 0, "path": "", "why": "from step 0: no checkpoint"}
    checkpoint.save(context, 3, _state(), {})
    with pytest.raises(FileNotFoundError, match=r"no good checkpoint of step 4 .*steps there: 3"):
        _restore(context, 4)
    found = checkpoint.resume(context, lambda *_: _state())
    assert found and events[-1] == {"type": "resumed", "step": 3, "path": found.path, "why": ""}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": jnp.zeros((2, 3), jnp.bfloat16)}, r"w was saved as float32\[2, 3\], and bfloat16\[2, 3\] is asked"),
        ({"w": jnp.zeros((2, 4))}, r"w was saved as float32\[2, 3\], and float32\[2, 4\] is asked"),
        ({"w": np.zeros((2, 3), np.float32)}, r"and float32\[2, 3\] in host memory is asked"),
        ({"other": jnp.zeros(3)}, r"the saved tree is another one.*: other"),
    ],
)
def test_another_dtype_shape_or_tree_is_refused(context: Context, change: dict, message: str) -> None:
    checkpoint.save(context, 1, _state(), {})
    with pytest.raises(ValueError, match=message):
        _restore(context, state={**_state(), **change})


def _loop(path: Path) -> None:
    """Stands for a storage that fails: reading it is neither data nor their absence, but an error of the kernel's."""
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize("what", ["manifest.json", "state/d/*"])
def test_what_cannot_be_read_is_skipped_for_a_good_step_but_nothing_starts_over(
    context: Context, events: list[dict[str, Any]], what: str
) -> None:
    first, second = (Path(checkpoint.save(context, step, _state(), {})) for step in (1, 2))
    _loop(next(second.glob(what)))
    found = checkpoint.resume(context, lambda *_: _state())
    assert found and found.step == 1
    _loop(next(first.glob(what)))
    with pytest.raises(StorageError, match=r"no good checkpoint could be read .* \(2 skipped: step 2: rank 0") as met:
        checkpoint.resume(context, lambda *_: _state())
    assert "symbolic links" in str(met.value) and "step 1: rank 0 on host localhost: " in str(met.value)
    assert [event["step"] for event in _of_type(events, "resumed")] == [1], "nobody said that it starts at 0"


def test_a_storage_that_is_not_the_jobs_is_no_storage_without_checkpoints(context: Context, tmp_path: Path) -> None:
    later = dataclasses.replace(context, attempt=2, attempt_id="second")
    with pytest.raises(StorageError, match=r"rank 0 on host localhost cannot look for checkpoints \(.* or not mounted"):
        checkpoint.resume(later, lambda *_: _state())
    write_fence(context.storage, 1, "first")  # left on this host by an attempt that met the bare folder, too
    with pytest.raises(StorageError, match=r"another attempt's \(first\) fence.json: it is not this job's storage"):
        checkpoint.resume(later, lambda *_: _state())
    write_fence(context.storage, 2, "second")
    assert checkpoint.resume(dataclasses.replace(later), lambda *_: _state()) is None


@pytest.mark.parametrize("lost_by", [0, 1])
def test_a_storage_that_one_host_does_not_reach_ends_the_attempt_on_all(
    saved: tuple[dict[str, Any], Path], tmp_path: Path, lost_by: int
) -> None:
    (tmp_path / "storage").symlink_to(saved[1])
    said = run_ranks(f"{PROGRAMS}:restore_without", num_hosts=2, devices_per_host=2, folder=tmp_path, lost_by=lost_by)
    for words in said:
        assert f"rank {lost_by} on host host-{lost_by}" in words and "not mounted" in words


def _folders(*steps: int, half: tuple[int, ...] = ()) -> list[StepFolder]:
    return [StepFolder(step=step, path=as_path(f"/s/{step}"), committed=step not in half) for step in steps]


@pytest.mark.parametrize(
    ("there", "half", "saved_step", "keep", "gone"),
    [
        ((30, 20, 10), (), 40, 3, [10]),
        ((30, 20, 10), (), 40, 1, [30, 20, 10]),
        ((30, 20, 10), (), 40, 0, [30, 20, 10]),
        ((30, 20, 10), (), 40, 9, []),
        ((30, 20, 10), (30,), 40, 2, [30, 10]),  # a half-written one counts for nothing
        ((40, 30), (), 40, 3, [40]),  # replaced
        ((60, 30, 20), (), 40, 2, [20]),  # 60 was skipped as damaged: it must not push good ones out
    ],
)
def test_what_may_go_when_a_step_is_committed(
    there: tuple[int, ...], half: tuple[int, ...], saved_step: int, keep: int, gone: list[int]
) -> None:
    assert [folder.step for folder in superseded(_folders(*there, half=half), saved_step, keep)] == gone


def test_a_damaged_step_takes_no_place_among_those_that_are_kept(context: Context) -> None:
    context = dataclasses.replace(context, keep=2)
    for step in (41, 43):
        newest = Path(checkpoint.save(context, step, _state(), {}))
    next(newest.glob("state/_METADATA")).unlink()
    found = checkpoint.resume(context, lambda *_: _state())
    assert found and found.step == 41
    for step, there in ((42, [43, 42, 41]), (60, [60, 42])):  # one that is newer stays: it is saved again, or passed
        assert checkpoint.save(context, step, _state(), {})
        assert [folder.step for folder in find_folders(context.storage)] == there


def test_a_step_that_was_computed_elsewhere_is_gone_on_from_with_a_word(
    context: Context, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {**computed_with(), "jax": "0.9.0", "processor": "Abacus", "not here": "1"}
    monkeypatch.setitem(vars(sys.modules[checkpoint.Saver.__module__]), "computed_with", lambda: there)
    checkpoint.save(context, 1, _state(), {})
    monkeypatch.undo()
    found = checkpoint.resume(context, lambda *_: _state(), tell_changes=False)
    here = computed_with()
    assert found and found.computed_otherwise == differences(there, here)
    (warning,) = _of_type(events, "warning")
    assert warning["text"] == (
        f"goes on from a checkpoint (step 1) that was computed with jax 0.9.0 (now {here['jax']}), processor Abacus "
        f"(now {here['processor']}): results may differ in their last bits from here on"
    )
    checkpoint.save(context, 2, _state(), {})
    again = checkpoint.resume(context, lambda *_: _state())
    assert again and again.step == 2 and not again.computed_otherwise and len(_of_type(events, "warning")) == 1


# --- a storage in which rank 0 does not see what the others have written


@pytest.mark.parametrize(("hidden_s", "steps"), [(1.0, [1, 2, 3]), (None, [1, 3])])
def test_a_step_counts_only_if_rank_0_sees_what_every_rank_has_written(
    tmp_path: Path, hidden_s: float | None, steps: list[int]
) -> None:
    arguments = {"num_hosts": 2, "devices_per_host": 2, "folder": tmp_path, "axes": AXES, "hidden_s": hidden_s}
    assert run_ranks(f"{PROGRAMS}:saves_what_is_hidden", **arguments) == [steps, steps]
    failed = _events(tmp_path, 0, "checkpoint-failed")
    assert [event["step"] for event in failed] == [2] * (3 - len(steps))
    for event in failed:
        assert "state/ocdbt.process_1/" in event["why"] and "is not seen here: the ranks do not share" in event["why"]


def test_a_file_that_is_shorter_here_than_where_it_was_written_costs_the_step(
    context: Context, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = context.store.deliver

    def longer(name: str) -> Delivered:
        files = deliver(name).files
        return Delivered(files={file: {"size": facts["size"] + 1} for file, facts in files.items()})

    monkeypatch.setattr(context.store, "deliver", longer)
    assert checkpoint.save(context, 10, _state(), {}) == ""
    (failed,) = _of_type(events, "checkpoint-failed")
    assert re.search(r"state/.* has \d+ bytes here, and \d+ for the rank that wrote it", failed["why"])


# --- a full disk, a fence, a diverged copy


class FailsWhileCopying:
    """An Orbax that raises before its first write is under way."""

    def __init__(self, words: str):
        self.words = words

    async def async_save(self, *_: Any, **__: Any) -> None:
        raise ValueError(self.words)


def test_a_disk_that_is_full_while_the_state_is_copied_costs_the_step(
    context: Context, events: list[dict[str, Any]]
) -> None:
    saver = checkpoint.Saver(context)
    saver._handler = FailsWhileCopying("OUT_OF_RANGE: Failed to write 172 bytes: File too large [os_error_code='27']")
    saver.save(1, _state(), {})
    saver.wait()
    (failed,) = [event for event in events if event["type"] == "checkpoint-failed"]
    assert "File too large" in failed["why"] and failed["last_good"] is None
    other = checkpoint.Saver(context)
    other._handler = FailsWhileCopying("this tree cannot be saved")
    with pytest.raises(ValueError, match="cannot be saved"):
        other.save(2, _state(), {})


# --- saves that nobody has waited for


def test_a_save_of_any_saver_that_is_under_way_is_waited_for(
    context: Context, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = context.store.deliver

    def slowly(name: str) -> Delivered:
        time.sleep(0.3)
        return deliver(name)

    monkeypatch.setattr(context.store, "deliver", slowly)
    first, second = checkpoint.Saver(context), checkpoint.Saver(context)
    first.save(10, _state(), {})
    second.save(20, _state(), {})  # it clears away what is unfinished, and so waits for the first
    assert first.wait().rpartition("/")[2].startswith("step_00000010.")
    assert context.saves_under_way
    context.finish_saves()
    assert [event["step"] for event in _of_type(events, "checkpoint")] == [10, 20]
    told = len(events)
    context.finish_saves()  # nothing is under way, and no phase is entered for it
    assert len(events) == told and second.wait().rpartition("/")[2].startswith("step_00000020.")


def test_a_save_that_nobody_has_waited_for_ends_as_in_mid_run(
    context: Context, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = checkpoint.Saver(context)
    with monkeypatch.context() as patched:
        patched.setattr(context.store, "deliver", lambda name: (_ for _ in ()).throw(OSError(28, "No space left")))
        saver.save(10, _state(), {})
        context.finish_saves()  # a full disk costs the step, and is told
    (failed,) = _of_type(events, "checkpoint-failed")
    assert failed["step"] == 10 and "No space left" in failed["why"]
    saver.save(20, _state(), {})
    context.finish_saves()
    saver.save(30, _state(), {})
    monkeypatch.setattr(context.store, "commit", lambda *_: (_ for _ in ()).throw(FencedError("attempt 2 has begun")))
    with pytest.raises(FencedError, match="attempt 2 has begun"):
        saver.save(40, _state(), {})  # waits for 30 itself, and so
    context.finish_saves()  # has nothing to add
    saver.save(50, _state(), {})
    with pytest.raises(FencedError, match="attempt 2 has begun"):
        context.finish_saves()


@pytest.mark.parametrize("full_on", [[0], [1]])
def test_full_disk_on_one_host_costs_one_step_on_all(tmp_path: Path, full_on: list[int]) -> None:
    arguments = {"num_hosts": 2, "devices_per_host": 2, "folder": tmp_path, "full_on": full_on}
    assert run_ranks(f"{PROGRAMS}:full_disk", **arguments) == [[10, 10, 30]] * 2
    (failed,) = _events(tmp_path, 0, "checkpoint-failed")
    assert (failed["step"], failed["last_good"]) == (20, 10)
    assert f"rank {full_on[0]}: " in failed["why"] and "File too large" in failed["why"]
    assert [event["step"] for event in _events(tmp_path, 0, "checkpoint")] == [10, 30]
    assert not list((tmp_path / "storage").glob("step_00000020*"))


def test_a_storage_that_refuses_folders_is_told_and_survived(context: Context, events: list[dict[str, Any]]) -> None:
    Path(context.storage).write_text("a file where the folder should be")
    assert checkpoint.save(context, 10, _state(), {}) == ""
    (failed,) = _of_type(events, "checkpoint-failed")
    assert (failed["step"], failed["last_good"]) == (10, None)
    assert failed["why"].startswith("rank 0: ")


def test_a_commit_that_fails_names_its_rank(
    context: Context, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(context.store, "commit", full)
    assert checkpoint.save(context, 10, _state(), {}) == ""
    (failed,) = _of_type(events, "checkpoint-failed")
    assert failed["why"] == "rank 0: OSError: [Errno 28] No space left on device"


def test_an_older_attempt_that_is_saving_commits_nothing(tmp_path: Path) -> None:
    ranks = run_ranks(f"{PROGRAMS}:fenced_while_saving", num_hosts=2, devices_per_host=2, folder=tmp_path)
    for rank in ranks:
        assert rank["latest"] == 10
        assert len(rank["said"]) == 2
        assert "attempt 1 (local) may write no checkpoint" in rank["said"][0]
        assert "attempt 2 (second) has begun" in rank["said"][0]


def test_a_namesake_of_the_same_number_is_fenced_too(context: Context) -> None:
    write_fence(context.storage, 1, "another")
    with pytest.raises(FencedError, match=r"attempt 1 \(another\) has begun"):
        checkpoint.save(context, 1, _state(), {})
    write_fence(context.storage, 1, "local")
    assert checkpoint.save(context, 1, _state(), {})


@pytest.mark.parametrize(
    ("num_hosts", "waits", "suspects", "history"),
    [
        (2, True, [], "1 x (host-0/memory) against 1 x (host-1/memory); culprit unknown: no group is more than half"),
        (2, False, [], "1 x (host-0/memory) against 1 x (host-1/memory); culprit unknown: no group is more than half"),
        (3, True, ["host-2"], "2 x (host-0/memory, host-1/memory) against 1 x (host-2/memory); culprit: host-2/memory"),
    ],
)
def test_copies_that_differ_are_not_saved_and_their_holders_are_told(
    tmp_path: Path, num_hosts: int, waits: bool, suspects: list[str], history: str
) -> None:
    ranks = run_ranks(f"{PROGRAMS}:diverged", num_hosts=num_hosts, devices_per_host=2, folder=tmp_path, waits=waits)
    for found in ranks:
        heading, *lines = found["said"].splitlines()
        assert heading == "the checkpoint of step 1 was not saved: copies differ, in 2 of 3 leaves:"
        assert lines[0].startswith(f"  history: {history}")
        assert lines[1].startswith(f"  w[0:4]: {num_hosts - 1} x (host-0/cpu:0")
        assert lines[2].startswith("  w[4:8]: ")
        assert (found["suspects"], found["latest"]) == (suspects, None)
        (verdict,) = found["events"]
        assert (verdict["status"], verdict["step"], verdict["num_leaves"]) == ("diverged", 1, 3)
        assert (verdict["bytes_checked"], verdict["bytes_single_copy"]) == (4 * 8 + 3 * 8 + 4 * 8, 0)
        assert not any(divergence["digests"] for divergence in verdict["divergences"]), "no replay has such"
