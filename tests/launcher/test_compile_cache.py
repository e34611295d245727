"""Every rank finds what it has compiled before, and computes the same bits with it."""

from pathlib import Path
from typing import Any

import pytest

from tests.ranks import run_ranks


def _run(cache: Path | None) -> list[dict[str, Any]]:
    return run_ranks(
        "tests.launcher.compile_cache_programs:steps",
        num_hosts=2,
        devices_per_host=2,
        keep_programs=False,  # it has a cache of its own
        cache=None if cache is None else str(cache),
    )


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
