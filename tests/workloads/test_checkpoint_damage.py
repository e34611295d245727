"""A saved checkpoint is damaged at random, again and again: nothing wrong is ever restored in silence.

SPMD_LAUNCH_DAMAGES says how many times; the table is printed with `-s`.
"""

import collections
import os
import random
from pathlib import Path

import pytest

from tests.ranks import run_ranks
from tests.workloads.damage_programs import damage, make
from workloads import checkpoint
from workloads.context import Context

NUM_DAMAGES = int(os.environ.get("SPMD_LAUNCH_DAMAGES", "100"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_damage_is_restored_in_silence() -> None:
    (outcomes,) = run_ranks(
        "tests.workloads.damage_programs:damage_again_and_again", num_hosts=1, devices_per_host=1, timeout_s=3600.0,
        times=NUM_DAMAGES,
    )  # fmt: skip
    counts = collections.Counter(map(tuple, outcomes))
    for row, count in sorted(counts.items()):
        print(*row, count, sep=" | ")
    assert len(outcomes) == NUM_DAMAGES
    assert not [outcome for outcome in outcomes if outcome[2].startswith("WRONG")]
    assert {kind for _, kind, outcome in counts if outcome == "fell back"} == {"flip", "truncate", "delete"}


def test_with_nothing_good_left_it_starts_from_step_0(tmp_path: Path) -> None:
    events: list[dict] = []
    context = Context.local(tmp_path, emit=events.append)
    for step in (1, 2):
        folder = Path(checkpoint.save(context, step, make(step), {}))
        damage(max(folder.rglob("d/*"), key=lambda path: path.stat().st_size), "truncate", random.Random(1))
    assert checkpoint.resume(context, lambda step, _: make(step)) is None
    assert [event["step"] for event in events if event["type"] == "checkpoint-skipped"] == [2, 1]
    resumed, warning = events[-2:]
    assert resumed["why"].startswith("from step 0: no good checkpoint (2 skipped: step 2: ")
    assert "; step 1: " in resumed["why"] and resumed["why"].endswith(")")
    assert warning == {"type": "warning", "text": f"starts {resumed['why']}"}
