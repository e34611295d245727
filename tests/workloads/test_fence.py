"""The fence: one attempt may write, whatever the numbers say, and a damaged fence is told as what it is."""

from pathlib import Path
from typing import Any

import pytest

from workloads import checkpoint
from workloads.context import Context
from workloads.errors import FencedError
from workloads.fence import check_fence, read_fence, write_fence


def test_only_the_attempt_of_the_fence_may_write_even_where_its_number_is_the_lower_one(tmp_path: Path) -> None:
    storage = str(tmp_path / "storage")
    check_fence(storage, 1, "any")  # without a launcher there is none
    write_fence(storage, 3, "old")
    write_fence(storage, 2, "new")  # a job that goes on from a copy of its record that was behind
    assert read_fence(storage) == (2, "new")
    check_fence(storage, 2, "new")
    for attempt, attempt_id in ((3, "old"), (2, "old"), (1, "new-too")):
        with pytest.raises(FencedError, match=r"may write no checkpoint under .*: attempt 2 \(new\) has begun"):
            check_fence(storage, attempt, attempt_id)


@pytest.mark.parametrize("text", ["", '{"attempt": 1, "att', "[]", '{"attempt": 1}'])
def test_a_damaged_fence_costs_the_step_and_is_named(tmp_path: Path, text: str) -> None:
    events: list[dict[str, Any]] = []
    context = Context.local(tmp_path, emit=events.append)
    write_fence(context.storage, 1, "local")
    path = Path(context.storage) / "fence.json"
    path.write_text(text)
    assert checkpoint.save(context, 1, {"count": 7}, {}) == ""
    (failed,) = [event for event in events if event["type"] == "checkpoint-failed"]
    assert failed["why"].startswith(f"rank 0: OSError: {path} is damaged (")
    write_fence(context.storage, 1, "local")
    assert checkpoint.save(context, 2, {"count": 7}, {})
