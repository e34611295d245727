"""Ranks of tests are forks of one process: each is fresh, how it ended is known, and none is left."""

from pathlib import Path

import pytest

from cluster.processes import ProcessId
from tests.hosts.commands import wait_until
from tests.ranks import run_ranks

PROGRAMS = "tests.rank_programs"


def test_each_rank_is_a_fresh_process_on_its_own_devices() -> None:
    for x64, num_devices in ((True, 3), (False, 1)):
        (found,) = run_ranks(f"{PROGRAMS}:leave_a_mark", num_hosts=1, devices_per_host=num_devices, x64=x64)
        assert found == [None, False, x64, num_devices]


@pytest.mark.parametrize(("how", "code"), [("exits", 9), ("aborts", -6), ("raises", 1), ("sleeps", None)])
def test_how_a_rank_ended_is_told_with_what_it_printed_and_nothing_of_it_is_left(
    how: str, code: int | None, tmp_path: Path
) -> None:
    timeout_s = 10.0 if how == "sleeps" else 60.0
    with pytest.raises(AssertionError) as caught:
        run_ranks(f"{PROGRAMS}:end", num_hosts=1, devices_per_host=1, timeout_s=timeout_s, folder=tmp_path, how=how)
    text = str(caught.value)
    assert f"{PROGRAMS}:end on 1 x 1: exit codes [{code}]" in text
    assert ("KeyError: 'no such key'" in text) == (how == "raises")
    assert ProcessId.of(int(text.partition(f"{how} with pid=")[2].partition(";")[0])) is None
    if how == "sleeps":
        child = int((tmp_path / "rank-0" / "child").read_text())
        wait_until(lambda: ProcessId.of(child) is None, "the child has ended, which nobody waits for", 60.0)
