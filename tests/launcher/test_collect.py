"""How the files of a rank come into the job's folder. Agents without Ray, over real folders."""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from launcher.collect import Collected, collect_outputs
from launcher.left_files import LeftFiles, list_files, read_piece
from tests.launcher.in_process import InProcess
from tests.launcher.test_left_files import NO_MEMORY_THERE


class OutputAgent:
    """The agent of a rank that has left this folder.

    Args:
        then: happens when the files have been listed.
        stuck: files whose disk does not answer.
        stands: whether the agent does not answer either, when it is asked for the time.
    """

    def __init__(
        self, output: Path, then: Callable[[], Any] = lambda: None, stuck: Sequence[str] = (), stands: bool = False
    ):
        self._output = output
        self._then = then
        self._stuck = stuck
        self._stands = stands

    async def collect(self, attempt_id: str) -> LeftFiles:
        found = list_files(self._output)
        self._then()
        return found

    async def read(self, attempt_id: str, path: str, offset: int, length: int) -> bytes:
        if path in self._stuck:
            await asyncio.Event().wait()
        return read_piece(self._output / path, offset, length)

    async def clock(self) -> float:
        if self._stands:
            await asyncio.Event().wait()
        return 0.0


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "output" / "results"
    folder.mkdir(parents=True)
    for name in ("a", "b", "c", "z"):
        (folder / name).write_text(10 * name)
    (folder / "empty").touch()
    return folder.parent


def collect(agent: OutputAgent, folder: Path, **options: Any) -> Collected:
    return asyncio.run(asyncio.wait_for(collect_outputs(InProcess(agent), "job.1.x", folder, **options), 60.0))


def test_each_file_comes_that_can_be_read(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.collect.PIECE_BYTES", 4)
    (output / "results" / "memory").symlink_to(NO_MEMORY_THERE)
    os.mkfifo(output / "results" / "pipe")
    job = tmp_path / "job"
    (job / "results" / "c").mkdir(parents=True)  # by an earlier attempt, which had other names
    for name in ("b", "memory", "pipe"):
        (job / "results" / name).write_text("of an earlier attempt")

    def changes() -> None:
        (output / "results" / "a").write_text("short")
        (output / "results" / "b").unlink()
        (output / "results" / "empty").write_text("new")

    collected = collect(OutputAgent(output, changes), job)
    assert collected.left == {
        "results/pipe": "a named pipe",
        "results/a": "it became shorter while it was fetched",
        "results/b": "removed meanwhile",
        "results/c": "the head cannot write it: Is a directory",
        "results/memory": "Input/output error",
    }
    assert collected.fetched == ["results/empty", "results/z"]
    found = {path.relative_to(job).as_posix(): path.read_text() for path in job.rglob("*") if path.is_file()}
    assert found == {"results/z": 10 * "z", "results/empty": "new"}, "nothing stands for what did not come"


def test_files_that_are_asked_for_and_are_not_there_are_named(output: Path, tmp_path: Path) -> None:
    collected = collect(OutputAgent(output), tmp_path / "job", only=["results/a", "results/y"])
    assert collected == Collected(fetched=["results/a"], left={"results/y": "it is not there"})


def test_a_disk_that_does_not_answer_is_told_from_an_agent_that_stands_still(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.collect.PIECE_TIMEOUT_S", 0.2)
    monkeypatch.setattr("launcher.collect.MAX_STUCK", 2)
    stuck = ["results/a", "results/c"]
    collected = collect(OutputAgent(output, stuck=stuck), tmp_path / "job")
    assert dict.fromkeys(stuck, "its disk did not give it within 0.2 s").items() <= collected.left.items()
    assert collected.fetched == ["results/b"]
    assert collected.left["results/z"] == "not tried, as its host's disk did not answer for others"
    broken = collect(OutputAgent(output, stuck=["results/b"], stands=True), tmp_path / "other")
    assert str(broken.broke_off) == "its agent did not send results/b from byte 0 on within 0.2 s"
    assert broken.fetched == ["results/a"] and sorted(broken.left) == [
        f"results/{name}" for name in ("b", "c", "empty", "z")
    ]
    assert broken.left["results/z"] == "not tried, as its host did not answer for others"
    assert [path.name for path in (tmp_path / "other" / "results").iterdir()] == ["a"]


def test_what_is_no_files_fault_is_handed_on(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = OutputAgent(output)

    async def forgot(*_: Any) -> bytes:
        raise KeyError("job.1.x")

    monkeypatch.setattr(agent, "read", forgot)
    collected = collect(agent, tmp_path / "job")
    assert isinstance(collected.broke_off, RayTaskError) and collected.fetched == []


def test_a_file_server_s_own_time_out_is_told_as_such(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = OutputAgent(output)

    async def refuses(*_: Any) -> bytes:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    monkeypatch.setattr(agent, "read", refuses)
    collected = collect(agent, tmp_path / "job")
    assert set(collected.left.values()) == {"Connection timed out"} and collected.broke_off is None
