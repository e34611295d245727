"""Ranks of tests are forks of one process: each is fresh, how it ended is known, and none is left."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import psutil
import pytest

from tests.ranks import run_ranks
from workloads.context import Context

HERE = "tests.test_ranks"


def leave_a_mark(context: Context) -> list[Any]:
    """What a rank finds, and then leaves in its process for nobody to find."""
    found = [os.environ.get("MARK"), hasattr(jax, "mark"), jax.config.read("jax_enable_x64"), jax.device_count()]
    os.environ["MARK"] = "left"
    jax.mark = True  # type: ignore[attr-defined]
    return found


def end(context: Context, *, how: str) -> None:
    print(f"{how} with pid={os.getpid()};", file=sys.stderr)
    if how == "sleeps":
        (context.output / "child").write_text(str(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")))
        time.sleep(600)
    {"exits": lambda: os._exit(9), "aborts": os.abort, "raises": lambda: {}["no such key"]}[how]()


def test_each_rank_is_a_fresh_process_on_its_own_devices() -> None:
    for x64, num_devices in ((True, 3), (False, 1)):
        (found,) = run_ranks(f"{HERE}:leave_a_mark", num_hosts=1, devices_per_host=num_devices, x64=x64)
        assert found == [None, False, x64, num_devices]


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(("how", "code"), [("exits", 9), ("aborts", -6), ("raises", 1), ("sleeps", None)])
def test_how_a_rank_ended_is_told_with_what_it_printed_and_nothing_of_it_is_left(
    how: str, code: int | None, tmp_path: Path
) -> None:
    timeout_s = 6.0 if how == "sleeps" else 60.0
    with pytest.raises(AssertionError) as caught:
        run_ranks(f"{HERE}:end", num_hosts=1, devices_per_host=1, timeout_s=timeout_s, folder=tmp_path, how=how)
    text = str(caught.value)
    assert f"{HERE}:end on 1 x 1: exit codes [{code}]" in text
    assert ("KeyError: 'no such key'" in text) == (how == "raises")
    assert _gone(int(text.partition(f"{how} with pid=")[2].partition(";")[0]))
    if how == "sleeps":
        assert _gone(int((tmp_path / "rank-0" / "child").read_text()))
