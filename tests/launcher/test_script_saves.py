"""Where a script's saves are, what is told of them, and what an attempt makes of hosts that differ."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.command import Command
from launcher.job import JobState
from launcher.script_saves import MAX_NAMED, Saves, describe_saves, look_at_saves, saves_folder, unequal_saves
from tests.launcher.in_process import InProcess
from tests.launcher.test_job_run import EXIT, FAILS, RESULT, HostOfManyAttempts, run

SOME, NONE = Saves(num_files=1, num_bytes=12), Saves()


def test_the_folder_is_outside_what_up_and_down_remove(state_folder: Path) -> None:
    assert saves_folder("h1", "/home/me/storage/fit.x1") == state_folder / "saved" / "h1" / "fit.x1"


def test_a_look_counts_files_and_follows_no_link(tmp_path: Path) -> None:
    assert look_at_saves(tmp_path / "nothing") == NONE
    (tmp_path / "saves" / "step_1").mkdir(parents=True)
    assert look_at_saves(tmp_path / "saves") == NONE
    (tmp_path / "saves" / "step_1" / "w.npy").write_bytes(bytes(12))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "big").write_bytes(bytes(1000))
    (tmp_path / "saves" / "elsewhere").symlink_to(tmp_path / "other")
    assert look_at_saves(tmp_path / "saves") == SOME
    with pytest.raises(OSError, match="Not a directory"):
        look_at_saves(tmp_path / "other" / "big")


def test_what_hosts_have_is_told_in_a_line() -> None:
    assert describe_saves(2, {"a": NONE, "b": NONE}) == (
        "attempt 2 finds nothing that the script has saved on its hosts' disks"
    )
    assert describe_saves(3, {"a": SOME, "b": Saves(num_files=2, num_bytes=3000)}) == (
        "attempt 3 finds what the script has saved on each host's own disk (a: 1 file, 12 B, b: 2 files, 3.0 kB)"
    )
    many = describe_saves(2, {f"h{k}": SOME for k in range(MAX_NAMED + 3)})
    assert many.endswith("h7: 1 file, 12 B and 3 more)")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([NONE, NONE], ""),
        ([SOME, Saves(num_files=2, num_bytes=3000)], ""),
        ([SOME, NONE], "b (rank 1) has no saves of the script, and a (rank 0) has: "),
        ([NONE, SOME, SOME], "a (rank 0) has no saves of the script, and b (rank 1), c (rank 2) have: "),
        ([SOME, NONE, NONE], "b (rank 1), c (rank 2) have no saves of the script, and a (rank 0) has: "),
    ],
)
def test_hosts_that_differ_are_named(found: Sequence[Saves], words: str) -> None:
    warning = unequal_saves(dict(zip("abc", found, strict=False)))
    assert warning.startswith(words) and bool(warning) == bool(words)


class HostWithSaves(HostOfManyAttempts):
    """Its rank fails once; its script has saved so much by each attempt."""

    def __init__(self, *saves: Saves):
        super().__init__([FAILS, ({"type": "joined"}, RESULT, EXIT)])
        self._saves = list(saves)

    async def saves(self, storage: str) -> Saves:
        return self._saves.pop(0)


class NoCheckpoints:
    """The keeper of a head on whose disk nothing lies."""

    async def fence(self, claim: object) -> None: ...


@pytest.mark.usefixtures("state_folder")
@pytest.mark.parametrize("command", [Command(words=["train"]), None], ids=["a script", "a workload"])
def test_each_attempt_of_a_script_tells_what_it_starts_with(tmp_path: Path, command: Command | None) -> None:
    agents = [HostWithSaves(NONE, SOME), HostWithSaves(NONE, NONE)]
    record = run(tmp_path, agents, command=command, keeper=InProcess(NoCheckpoints()))
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2), record.message
    events = [event for event in record.folder.lines("events.jsonl") if event["type"] == "saves"]
    told = [note for note in record.notes if "saved" in note or "saves" in note]
    if command is None:
        assert not events and not told
        return
    assert [[host["num_files"] for host in event["hosts"]] for event in events] == [[0, 0], [1, 0]]
    assert [note.partition(" (")[0] for note in told] == [
        "attempt 2 finds what the script has saved on each host's own disk", "laptop-1"
    ]  # fmt: skip
