"""Every rank finds what it has compiled before, and computes the same bits with it."""

import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from launcher.rank.compile_cache import CHECKED, drop_damaged
from tests.ranks import run_ranks


def _run(cache: Path | None) -> list[dict[str, Any]]:
    return run_ranks(
        "tests.launcher.compile_cache_programs:steps",
        num_hosts=2,
        devices_per_host=2,
        keep_programs=False,  # it has a cache of its own
        cache=None if cache is None else str(cache),
    )


def test_an_entry_is_read_again_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one-cache", tmp_path / "other-cache"
    for path in (one, other):
        path.write_bytes(zlib.compress(path.name.encode()))
    read: list[str] = []
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or original(path))
    assert (drop_damaged(tmp_path), sorted(read)) == (0, [one.name, other.name])
    read.clear()
    assert (drop_damaged(tmp_path), read) == (0, []), "nothing has changed"

    whole = original(one)
    one.write_bytes(whole[:-1])  # as a killed rank leaves it
    assert (drop_damaged(tmp_path), read, one.exists(), other.exists()) == (1, [one.name], False, True)
    one.write_bytes(whole)
    read.clear()
    assert (drop_damaged(tmp_path), read) == (0, [one.name]), "it was compiled again"

    facts = other.stat()
    other.write_bytes(b"?" * facts.st_size)
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert drop_damaged(tmp_path) == 1, "the same size at another time"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"one-cache": 1}'])
def test_a_damaged_list_of_entries_is_not_believed(content: str, tmp_path: Path) -> None:
    (tmp_path / "one-cache").write_bytes(b"half an entry")
    (tmp_path / CHECKED).write_text(content)
    assert drop_damaged(tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [CHECKED]


def test_a_folder_that_is_not_there_has_no_damage(tmp_path: Path) -> None:
    assert drop_damaged(tmp_path / "none") == 0
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_second_run_compiles_nothing_on_any_rank_and_gives_the_same_bits(tmp_path: Path) -> None:
    without, cold, warm = _run(None), _run(tmp_path), _run(tmp_path)
    assert len({rank["digest"] for rank in without + cold + warm}) == 1
    for first, second in zip(cold, warm, strict=True):
        assert (first["why"], first["hits"]) == ("", 0)
        assert second["hits"] == second["requests"] == first["requests"] > 0
    entries = sorted(path for path in tmp_path.glob("rank-*/*-cache"))
    sizes = {path: path.stat().st_size for path in entries}
    for number, path in enumerate(entries):  # a rank killed while it wrote, a bit that flipped
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content if number % 2 else content[: len(content) // 2])
    damaged = _run(tmp_path)
    assert {rank["digest"] for rank in damaged} == {without[0]["digest"]}
    assert [rank["hits"] for rank in damaged] == [0, 0]
    assert {path: path.stat().st_size for path in tmp_path.glob("rank-*/*-cache")}.keys() == sizes.keys()
    assert [rank["hits"] for rank in _run(tmp_path)] == [rank["requests"] for rank in warm], "they were replaced"
