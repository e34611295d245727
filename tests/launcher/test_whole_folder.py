"""Several make one folder at once, as a sweep of jobs with one content does on a host: all find it whole."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.blobs import store_file
from launcher.code_copy import CodeFile, digest_code, pack, unpack
from launcher.user_folder import NAME, pack_folder
from launcher.user_process import user_folder
from launcher.whole_folder import made_whole

NUM_AT_ONCE = 8
NUM_FILES = 200
ROUNDS = 3


def files_of(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def at_once(make: Callable[[], None]) -> None:
    """Has threads do it together; raises what one of them raises."""
    together = threading.Barrier(NUM_AT_ONCE)

    def begin() -> None:
        together.wait()
        make()

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        for made in [pool.submit(begin) for _ in range(NUM_AT_ONCE)]:
            made.result()


def test_a_users_folder_is_whole_for_all_that_ask_at_once(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for number in range(NUM_FILES):
        (project / f"{number}.txt").write_text("x" * number)

    async def ask(digest: str) -> int:
        return files_of(await user_folder(tmp_path, digest, NAME))

    async def program(digest: str) -> list[int]:
        return await asyncio.gather(*(ask(digest) for _ in range(NUM_AT_ONCE)))

    (tmp_path / "folders").mkdir()
    for digest in map(str, range(ROUNDS)):
        (tmp_path / "files" / digest).mkdir(parents=True)
        (tmp_path / "files" / digest / NAME).write_bytes(pack_folder(project))
        assert asyncio.run(program(digest)) == [NUM_FILES] * NUM_AT_ONCE
    assert len(list((tmp_path / "folders").iterdir())) == ROUNDS


def test_code_is_whole_for_all_that_unpack_it_at_once(tmp_path: Path) -> None:
    files = [CodeFile(f"launcher/{number:03}.py", False, b"x" * number) for number in range(NUM_FILES)]
    archive, digest = pack(files), digest_code(files)
    for name in map(str, range(ROUNDS)):
        at_once(lambda folder=tmp_path / name: unpack(archive, folder, digest))  # type: ignore[misc]
        assert files_of(tmp_path / name) == NUM_FILES
    assert len(list(tmp_path.iterdir())) == ROUNDS


def test_an_input_file_is_stored_by_all_that_bring_it_at_once(tmp_path: Path) -> None:
    for name in map(str, range(ROUNDS)):
        at_once(lambda folder=tmp_path / name: store_file(folder, "a.txt", b"a" * 2**20))  # type: ignore[misc]
        assert (tmp_path / name / "a.txt").stat().st_size == 2**20
    assert len(list(tmp_path.iterdir())) == ROUNDS


def test_what_fails_leaves_nothing_and_a_name_that_is_refused_is_told(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), made_whole(tmp_path / "a") as partial:
        (partial / "x").write_text("half")
        raise ZeroDivisionError
    with pytest.raises(OSError, match="long"), made_whole(tmp_path / ("n" * 250)):
        pass
    assert list(tmp_path.iterdir()) == []
