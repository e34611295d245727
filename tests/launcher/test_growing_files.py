"""Files that grow: whatever a disk does, and wherever a writer was killed, lines are whole or skipped."""

import json
from pathlib import Path

import pytest

from launcher import growing_files
from launcher.growing_files import EVENTS, METRICS, GrowingFiles
from launcher.job_folder import JobFolder
from tests.launcher.full_disk import full_disk

LOG = "attempt-1.rank-0.log"


def line(number: int) -> str:
    return json.dumps({"at": number, "message": "é" * 20}) + "\n"


@pytest.mark.parametrize("room", [0, 1, len(line(0)) - 1, len(line(0)) + 3])
def test_what_a_full_disk_refuses_can_be_read_and_is_written_when_there_is_room(tmp_path: Path, room: int) -> None:
    files = GrowingFiles(tmp_path)
    files.append(EVENTS, line(0))
    with full_disk(len(line(0)) + room):
        for number in range(1, 4):
            files.append(EVENTS, line(number))
        assert files.failure == f"{tmp_path / EVENTS}: File too large"
        files.write_late()
        assert files.failure and [json.loads(found)["at"] for found in files.lines(EVENTS)] == [0, 1, 2, 3]
        assert (tmp_path / EVENTS).stat().st_size == len(line(0)) + room
    files.write_late()
    assert files.failure == "" and (tmp_path / EVENTS).read_text() == "".join(map(line, range(4)))
    files.append(EVENTS, line(4))
    files.close()
    assert (tmp_path / EVENTS).read_text() == "".join(map(line, range(5)))


def test_a_folder_that_is_gone_raises_nothing(tmp_path: Path) -> None:
    files = GrowingFiles(tmp_path / "gone")
    files.append(LOG, "hello")
    assert files.failure == f"{tmp_path / 'gone' / LOG}: No such file or directory"
    (tmp_path / "gone").mkdir()
    files.write_late()
    files.close()
    assert (tmp_path / "gone" / LOG).read_text() == "hello"


def test_logs_that_somebody_has_removed_to_make_room_are_begun_anew(tmp_path: Path) -> None:
    files = GrowingFiles(tmp_path)
    files.append(f"logs/{LOG}", "hello")
    (tmp_path / "logs" / LOG).unlink()
    (tmp_path / "logs").rmdir()
    files.append("logs/attempt-2.rank-0.log", "again")
    files.close()
    assert files.failure == "" and (tmp_path / "logs" / "attempt-2.rank-0.log").read_text() == "again"


def test_logs_that_are_too_much_to_keep_are_counted_and_events_never_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing_files, "MAX_LATE_BYTES", 10)
    files = GrowingFiles(tmp_path)
    with full_disk():
        for text in ("12345\n", "789\n", "too much\n", "too\n"):
            files.append(LOG, text)
        files.append(EVENTS, line(0))
        files.append(EVENTS, line(1))
    files.write_late()
    files.close()
    assert (tmp_path / LOG).read_text() == "12345\n789\n" and files.num_given_up == len("too much\ntoo\n")
    assert (tmp_path / EVENTS).read_text() == line(0) + line(1)


@pytest.mark.parametrize("file", [EVENTS, METRICS])
def test_half_a_line_of_a_writer_that_was_killed_is_ended_and_skipped(tmp_path: Path, file: str) -> None:
    half = line(0) + line(1)[:9]
    (tmp_path / file).write_text(half)
    for number in (2, 3):
        folder = JobFolder(tmp_path)
        folder.append_text(file, line(number))
        folder.close()
        assert [found["at"] for found in JobFolder(tmp_path).lines(file)] == [0, *range(2, number + 1)]
    assert (tmp_path / file).read_text() == f"{half}\n{line(2)}{line(3)}", "a client's copy of the half goes on from it"


def test_a_line_that_two_writers_have_joined_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_text(line(0) + line(1)[:9] + line(2) + line(3))
    assert [found["at"] for found in JobFolder(tmp_path).lines(EVENTS)] == [0, 3]


def test_a_log_goes_on_in_the_middle_of_a_line(tmp_path: Path) -> None:
    for text in ("one, ", "two\n"):
        files = GrowingFiles(tmp_path)
        files.append(LOG, text)
        files.close()
    assert (tmp_path / LOG).read_text() == "one, two\n"
