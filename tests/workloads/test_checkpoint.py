"""Checkpoints: whole or invisible, bit-exact on another layout, and refused in words where they do not fit."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ranks import run_ranks
from workloads import checkpoint
from workloads.context import Context

PROGRAMS = "tests.workloads.checkpoint_programs"


def _state() -> dict[str, object]:
    return {"w": jnp.arange(6.0).reshape(2, 3), "key": jax.random.key(3), "host": np.arange(4), "count": 7}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context.local(tmp_path)


def test_saved_on_2x2_and_restored_on_1x4_bit_for_bit(tmp_path: Path) -> None:
    saved_in, restored_in = tmp_path / "saved", tmp_path / "restored"
    saved_in.mkdir(), restored_in.mkdir()
    axes = {"a": 2, "b": 2}
    saved = run_ranks(f"{PROGRAMS}:save", num_hosts=2, devices_per_host=2, folder=saved_in, axes=axes, steps=[5, 10])
    assert saved[0] == saved[1]
    assert saved[0]["latest"] == 10
    (saved_in / "storage").rename(restored_in / "storage")
    arguments = {"axes": {"a": 4, "b": 1}, "step": None}
    (found,) = run_ranks(f"{PROGRAMS}:restore", num_hosts=1, devices_per_host=4, folder=restored_in, **arguments)
    assert found["step"] == 10
    assert found["digest"] == saved[0]["digest"]
    assert found["metadata"] == {"step": 10, "words": ["a", "é"]}
    assert all(found["shardings"].values())
    assert found["same_draw"]
    assert found["types"] == ["ndarray", "Moments"]


def test_event_says_step_path_bytes_and_seconds(tmp_path: Path) -> None:
    events: list[dict] = []
    context = Context.local(tmp_path, emit=events.append)
    path = checkpoint.save(context, 40, _state(), {})
    (event,) = [event for event in events if event["type"] == "checkpoint"]
    assert event["step"] == 40
    assert event["path"] == path
    assert event["bytes"] == 6 * 4 + 2 * 4 + 4 * 8 + 8
    assert event["seconds"] > 0
    assert events[0] == {"type": "phase", "phase": "checkpoint"}
    assert Path(path).is_dir()


def test_a_step_that_is_there_is_replaced_and_others_stay(context: Context) -> None:
    checkpoint.save(context, 1, _state(), {"by": "first"})
    checkpoint.save(context, 2, _state(), {"by": "first"})
    checkpoint.save(context, 2, {**_state(), "count": 8}, {"by": "second"})
    assert checkpoint.latest_step(context.storage) == 2
    assert checkpoint.restore(context.storage, 1, _state())[2] == {"by": "first"}
    step, state, metadata = checkpoint.restore(context.storage, None, _state())
    assert (step, state["count"], metadata) == (2, 8, {"by": "second"})
    np.testing.assert_array_equal(state["w"], _state()["w"])
    assert jax.random.key_impl(state["key"]) == jax.random.key_impl(_state()["key"])


def test_a_half_written_step_cannot_be_seen_and_is_no_obstacle(context: Context) -> None:
    checkpoint.save(context, 1, _state(), {})
    path = Path(checkpoint.save(context, 2, _state(), {}))
    half = path.rename(path.with_name(f"{path.name}.orbax-checkpoint-tmp"))  # what a kill during a save leaves
    (half / "state" / "_METADATA").unlink()
    assert checkpoint.latest_step(context.storage) == 1
    checkpoint.save(context, 2, _state(), {})
    assert checkpoint.restore(context.storage, None, _state())[0] == 2


def test_metadata_that_json_cannot_hold_is_refused_before_anything_is_written(context: Context) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        checkpoint.save(context, 2, _state(), {"no": object()})
    assert not Path(context.storage).exists()


def test_nothing_there_is_none_and_a_missing_step_names_what_there_is(context: Context) -> None:
    assert checkpoint.latest_step(context.storage) is None
    with pytest.raises(FileNotFoundError, match=r"no checkpoint under .*steps there: none"):
        checkpoint.restore(context.storage, None, _state())
    checkpoint.save(context, 3, _state(), {})
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 4 .*steps there: 3"):
        checkpoint.restore(context.storage, 4, _state())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": jnp.zeros((2, 3), jnp.bfloat16)}, r"w was saved as float32\[2, 3\], and bfloat16\[2, 3\] is asked"),
        ({"w": jnp.zeros((2, 4))}, r"w was saved as float32\[2, 3\], and float32\[2, 4\] is asked"),
        ({"other": jnp.zeros(3)}, r"the saved tree is another one.*: other"),
    ],
)
def test_another_dtype_shape_or_tree_is_refused(context: Context, change: dict, message: str) -> None:
    checkpoint.save(context, 1, _state(), {})
    with pytest.raises(ValueError, match=message):
        checkpoint.restore(context.storage, 1, {**_state(), **change})
