"""Why a step cannot be read: what is damaged is named and fallen back from, and nothing else counts as damage."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.ranks import run_ranks
from tests.workloads.checkpoint_programs import CannotRead
from workloads import checkpoint
from workloads.checkpoint import reading
from workloads.context import Context

CHUNK = b"\x28\xb5\x2f\xfd"  # how what zstd has compressed begins


def _state() -> dict[str, Any]:
    """A leaf that lies in a data file, and two that are small enough for the index, one without axes."""
    return {"params": {"w": jax.random.normal(jax.random.key(1), (64, 48))}, "a/b": jnp.ones(3), "count": jnp.int32(3)}


def _data(folder: Path) -> Path:
    return max(folder.glob("state/ocdbt.process_0/d/*"), key=lambda path: path.stat().st_size)


def _index(folder: Path) -> Path:
    (index,) = folder.glob("state/d/*")
    return index


def _spoil(path: Path) -> None:
    """Nothing in the file can be unpacked any more."""
    path.write_bytes(path.read_bytes().replace(CHUNK, b"none"))


def _flip(path: Path) -> None:
    """In the middle of the longest chunk: it can be unpacked, to other bits."""
    longest = max(path.read_bytes().split(CHUNK), key=len)
    content = bytearray(path.read_bytes())
    content[content.index(longest) + 5000] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("which", "damage", "told"),
    [
        (_data, _flip, "the bits of params/w (in FILE) are not those that were saved"),
        (_data, _spoil, "params/w cannot be read (ValueError: "),
        (_data, Path.unlink, "FILE (with params/w) is gone"),
        (_data, lambda path: path.write_bytes(b"short"), "FILE (with params/w) has 5 bytes, "),
        (_index, _spoil, "FILE cannot be read (ValueError: "),
        (_index, Path.unlink, "FILE is gone"),
    ],
)
def test_what_is_damaged_is_told_by_leaf_and_file(
    context: Context,
    events: list[dict[str, Any]],
    which: Callable[[Path], Path],
    damage: Callable[[Path], Any],
    told: str,
) -> None:
    checkpoint.save(context, 1, _state(), {})
    folder = Path(checkpoint.save(context, 2, _state(), {}))
    path = which(folder)
    damage(path)
    found = checkpoint.resume(context, lambda *_: _state())
    assert found and found.step == 1
    (skipped,) = [event for event in events if event["type"] == "checkpoint-skipped"]
    file = str(path.relative_to(folder))
    assert skipped["why"].startswith(told.replace("FILE", file))
    assert file in skipped["why"]


def test_a_checkpoint_that_is_asked_for_as_it_cannot_be_is_no_damaged_one(tmp_path: Path) -> None:
    said = run_ranks(
        "tests.workloads.checkpoint_programs:resume_as_it_cannot_be", num_hosts=3, devices_per_host=1, folder=tmp_path
    )
    assert said[0] == said[1] == said[2]
    in_rows, unread = said[0]
    assert "w cannot be laid out as it is asked for: " in in_rows and "the dimension size is 4" in in_rows
    assert "is not damaged, every array of it can be read" in unread
    assert unread.endswith("rank 2 on host host-2: the data cannot be read (ValueError: what nobody has thought of)")
    told = (tmp_path / "value-0.json").read_text()
    assert '"checkpoint-skipped"' not in told and '"resumed"' not in told, "nothing is left out, or starts over"


def test_what_is_raised_by_the_way_is_raised(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(context, 1, _state(), {})
    monkeypatch.setattr(reading, "make_handler", lambda: CannotRead(MemoryError()))
    with pytest.raises(Exception, match="while reading array index") as raised:
        checkpoint.resume(context, lambda *_: _state())
    assert isinstance(raised.value.__cause__, MemoryError), "the checkpoint is good: to start over would lose work"
