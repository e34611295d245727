"""Launches compared from outside, as reports and heartbeats bring them."""

import pickle
import random
from collections.abc import Sequence

import pytest

from launcher.launch_ledger import LaunchLedger
from workloads.agreement.launches import LaunchLog
from workloads.exchange import Exchange


def _log(entries: Sequence[str] = ()) -> LaunchLog:
    log = LaunchLog(Exchange(0, 1))
    for entry in entries:
        log.record(entry)
    return log


def _report(log: LaunchLog, step: int) -> dict[str, object]:
    return {"step": step, **log.report(step)}


def test_a_rank_that_is_behind_is_no_difference() -> None:
    ledger = LaunchLedger(2)
    first, second = _log(["train"] * 3), _log(["train"])
    assert ledger.hear_report(0, _report(first, 3)) == ""
    assert ledger.hear_report(1, _report(second, 1)) == ""
    second.record("train")
    second.record("train")
    assert ledger.hear_report(1, _report(second, 3)) == ""


def test_the_first_differing_launch_is_named() -> None:
    ledger = LaunchLedger(2)
    first, second = _log(["init", *["train"] * 5, "validate", "train"]), _log(["init", *["train"] * 4, "validate"])
    ledger.hear_report(0, _report(first, 6))
    found = ledger.hear_report(1, _report(second, 4))
    assert found == "launch 6: rank 0 launched 'train' where rank 1 launched 'validate'"
    second.record("train")
    assert ledger.hear_report(1, _report(second, 5)) == found, "the first difference stays"


def test_a_majority_is_named_first() -> None:
    ledger = LaunchLedger(3)
    for rank, entry in ((1, "a"), (2, "a"), (0, "b")):
        found = ledger.hear_report(rank, _report(_log([entry]), 1))
    assert found == "launch 1: ranks 1, 2 launched 'a' where rank 0 launched 'b'"


def test_programs_of_one_name_are_told_apart() -> None:
    ledger = LaunchLedger(2)
    ledger.hear_report(0, _report(_log(["train #aa"]), 1))
    found = ledger.hear_report(1, _report(_log(["train #bb"]), 1))
    assert found is not None and found.startswith(
        "launch 1: rank 0 launched 'train #aa' where rank 1 launched 'train #bb'"
    )
    assert "after # is the digest of each" in found


def test_a_skipped_launch_of_the_one_program_shows_at_the_same_step() -> None:
    ledger = LaunchLedger(2)
    first, second = _log(["train"] * 13), _log(["train"] * 12)
    ledger.hear_report(0, _report(first, 13))
    assert ledger.hear_report(1, _report(second, 13)) == "launches at the report of step 13: rank 0 13, rank 1 12"


def test_a_step_reported_again_is_compared_with_its_own_kind() -> None:
    ledger = LaunchLedger(2)
    logs = [_log(["train"]), _log(["train"])]
    for rank, log in enumerate(logs):
        ledger.hear_report(rank, _report(log, 1))
        log.record("train")
        ledger.hear_report(rank, _report(log, 1))
    assert ledger.difference == ""


def test_a_heartbeat_in_a_hang_is_enough() -> None:
    ledger = LaunchLedger(2)
    first, second = _log(["train", "train"]), _log(["train", "gather"])
    for rank, log in enumerate((first, second)):
        snapshot = log.snapshot()
        found = ledger.hear(rank, snapshot.count, snapshot.digest, snapshot.runs)
    assert found == "launch 2: rank 0 launched 'train' where rank 1 launched 'gather'"


def test_news_may_come_late_twice_and_after_a_gap() -> None:
    ledger = LaunchLedger(2)
    first, second = _log(), _log()
    for step in range(1, 40):
        for log in (first, second):
            log.record("train" if step % 2 else "validate")
        ledger.hear_report(0, _report(first, step))
        snapshot = second.snapshot()
        ledger.hear(1, snapshot.count, snapshot.digest, snapshot.runs[-1:])  # less than has happened since
        ledger.hear(1, snapshot.count, snapshot.digest, snapshot.runs)
    assert ledger.difference == ""
    first.record("a")
    second.record("b")
    for rank, log in enumerate((first, second)):
        ledger.hear(rank, log.snapshot().count, log.snapshot().digest, [])  # nothing but the digest
    assert ledger.difference.startswith("one of the first 40 launches: rank 0 and rank 1")


@pytest.mark.parametrize("seed", range(20))
def test_interleavings_find_the_difference_and_nothing_else(seed: int) -> None:
    """Three ranks at their own pace; one of them swaps two launches, or none does."""
    rng = random.Random(seed)
    entries = [rng.choice(["train", "train", "train", "validate", "gather"]) for _ in range(200)]
    swapped = list(entries)
    where = next(place for place in range(rng.randrange(150), 199) if entries[place] != entries[place + 1])
    if seed % 2:
        swapped[where : where + 2] = swapped[where + 1], swapped[where]
    ledger, logs, done = LaunchLedger(3), [_log() for _ in range(3)], [0, 0, 0]
    while min(done) < len(entries):
        rank = rng.choice([rank for rank in range(3) if done[rank] < len(entries)])
        logs[rank].record((swapped if rank == 2 else entries)[done[rank]])
        done[rank] += 1
        if done[rank] % 7 == 0:
            ledger.hear_report(rank, _report(logs[rank], done[rank]))
        if rng.random() < 0.1:
            snapshot = logs[rank].snapshot()
            ledger.hear(rank, snapshot.count, snapshot.digest, snapshot.runs)
    if seed % 2:
        assert ledger.difference.startswith(f"launch {where + 1}: "), ledger.difference
        assert "rank 2 launched" in ledger.difference
    else:
        assert ledger.difference == ""


def test_a_skipped_launch_shows_where_the_ranks_wait_for_each_other() -> None:
    """Rank 1 has skipped a launch and waits elsewhere; rank 0 waits for it in that launch, and never reports again."""
    ledger = LaunchLedger(2)
    first, second = _log(["train"] * 26), _log(["train"] * 26)
    for rank, log in ((0, first), (1, second)):
        assert ledger.hear_report(rank, _report(log, 32)) == ""
    first.record("train")
    assert ledger.hear_progress(0, 1, first.snapshot().count) == "", "it may only be ahead"
    assert (
        ledger.hear_report(1, _report(second, 34)) == "launches at the report of step 34: rank 1 26, rank 0 27 or more"
    )


def test_a_rank_that_is_about_to_report_is_no_difference() -> None:
    ledger = LaunchLedger(2)
    first, second = _log(["train"] * 26), _log(["train"] * 26)
    for rank, log in ((0, first), (1, second)):
        ledger.hear_report(rank, _report(log, 32))
        log.record("train")
    assert ledger.hear_report(1, _report(second, 34)) == ""
    assert ledger.hear_progress(0, 1, first.snapshot().count) == ""
    assert ledger.hear_progress(1, 2, second.snapshot().count) == ""
    second.record("train")
    assert ledger.hear_progress(1, 2, second.snapshot().count) == "", "nobody has reported step 36"


def test_steps_that_begin_anew_are_no_difference() -> None:
    """As where a job reports the steps of each epoch."""
    ledger, logs = LaunchLedger(2), [_log(), _log()]
    for reports, step in enumerate((1, 2, 3, 1, 2, 3), start=1):
        for rank, log in enumerate(logs):
            log.record("train")
            assert ledger.hear_report(rank, _report(log, step)) == ""
            assert ledger.hear_progress(rank, reports, log.snapshot().count) == ""


def test_a_heartbeat_that_overtakes_its_report_is_no_difference() -> None:
    ledger, logs = LaunchLedger(2), [_log(["train"]), _log(["train"])]
    for rank, log in enumerate(logs):
        ledger.hear_report(rank, _report(log, 1))
        log.record("train")
    ledger.hear_report(1, _report(logs[1], 2))
    logs[0].record("train")
    assert ledger.hear_progress(0, 2, logs[0].snapshot().count) == "", "its report of step 2 is on its way"


def test_a_skipped_launch_shows_in_a_later_epoch_too() -> None:
    ledger, logs = LaunchLedger(2), [_log(), _log()]
    for step in (1, 2, 1):
        for rank, log in enumerate(logs):
            log.record("train")
            ledger.hear_report(rank, _report(log, step))
    logs[0].record("train")
    ledger.hear_progress(0, 3, logs[0].snapshot().count)
    found = ledger.hear_report(1, _report(logs[1], 2))
    assert found == "launches at the report of step 2: rank 1 3, rank 0 4 or more"


def test_what_is_kept_of_a_step_does_not_grow_with_the_ranks() -> None:
    def kept(num_ranks: int, steps: int) -> int:
        ledger, log = LaunchLedger(num_ranks), _log()
        for step in range(1, steps + 1):
            log.record("train")
            said = _report(log, step)
            for rank in range(num_ranks):
                assert ledger.hear_report(rank, said) == ""
        return len(pickle.dumps(ledger))

    few, many = (kept(num_ranks, 400) - kept(num_ranks, 100) for num_ranks in (2, 32))
    assert many < 2 * few


def test_at_the_end_a_rank_that_has_launched_less_differs() -> None:
    ledger = LaunchLedger(2)
    for rank, times in ((0, 3), (1, 2)):
        said = _log(["train"] * times).snapshot()
        assert ledger.hear(rank, said.count, said.digest, said.runs) == ""
    assert ledger.close() == "launches until the end: rank 0 3, rank 1 2"


def test_at_the_end_equal_ranks_are_equal_and_nothing_known_is_no_difference() -> None:
    assert LaunchLedger(2).close() == ""
    ledger = LaunchLedger(2)
    for rank in range(2):
        said = _log(["train"] * 3).snapshot()
        ledger.hear(rank, said.count, said.digest, said.runs)
    assert ledger.close() == ""
