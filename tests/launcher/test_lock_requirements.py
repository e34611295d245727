"""Which packages a file comes to: the real uv, on an index of two small packages."""

import asyncio
import os
from pathlib import Path

import pytest

from launcher.job_environment import JobEnvironment, Making
from launcher.lock_requirements import KEEP, ResolveError, find_uv, lock_requirements, made_for_jobs
from launcher.requirements import Requirements
from tests.wheels import write_wheel


@pytest.fixture
def index(tmp_path: Path, state_folder: Path) -> Path:
    """`pair` 1.0 and 2.0, each of which needs the same version of `part`."""
    folder = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        write_wheel(folder, "part", version)
        write_wheel(folder, "pair", version, [f"part=={version}"])
    return folder


def lock(index: Path, *lines: str, constraints: tuple[str, ...] = (), beneath: bool = False, **variables: str) -> str:
    where = ("--no-index", f"--find-links {index}")
    asked = Requirements(name="requirements.txt", lines=[*where, *lines], constraints=constraints)
    environment = {**os.environ, "UV_CACHE_DIR": str(index.parent / "cache"), **variables}
    return asyncio.run(lock_requirements(asked, environment, index.parent, beneath=beneath))


def pins(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if "==" in line]


def test_all_packages_are_pinned_with_hashes_and_where_to_find_them(index: Path) -> None:
    text = lock(index, "pair")
    assert pins(text) == ["pair==2.0", "part==2.0"] and text.count("--hash=sha256:") == 2
    assert text.startswith(f"--no-index\n--find-links {index}\n")
    assert pins(lock(index, "pair", constraints=("part<2",))) == ["pair==1.0", "part==1.0"]


def test_a_file_is_resolved_once(index: Path) -> None:
    first = lock(index, "pair")
    write_wheel(index, "part", "3.0")
    write_wheel(index, "pair", "3.0", ["part==3.0"])
    assert lock(index, "pair") == first
    assert pins(lock(index, "pair ")) == ["pair==3.0", "part==3.0"], "another content is another file"
    assert pins(lock(index, "pair", UV_EXCLUDE_NEWER="2999-01-01")) == ["pair==3.0", "part==3.0"], "uv is set otherwise"


def test_the_last_used_are_kept(index: Path) -> None:
    for number in range(KEEP + 2):
        lock(index, "part", f"# {number}")
    assert len(list((made_for_jobs() / "locked").iterdir())) == KEEP


@pytest.mark.parametrize(
    ("lines", "words"),
    [(["pair==9"], "no version of pair==9"), (["pair==2.0", "part==1.0"], "depends on part==2.0"),
     (["absent"], "absent was not found"), (["a b c"], "parse requirement in `requirements.txt`")],
)  # fmt: skip
def test_why_there_is_none_is_said_by_uv(index: Path, lines: list[str], words: str) -> None:
    with pytest.raises(ResolveError, match=words):
        lock(index, *lines)
    assert not list((made_for_jobs() / "locked").iterdir())


def test_a_hashed_file_is_taken_as_it_is_if_it_is_whole(index: Path) -> None:
    hashed = [line for line in lock(index, "pair==1.0").replace(" \\\n", " ").splitlines() if "--hash" in line]
    assert lock(index, *hashed).splitlines()[2:] == hashed
    with pytest.raises(ResolveError, match="part"):
        lock(index, hashed[0])  # what it needs has no hash


def test_what_lies_beneath_is_not_changed(index: Path) -> None:
    import numpy

    write_wheel(index, "numpy", "1.0")
    write_wheel(index, "numpy", numpy.__version__)
    assert pins(lock(index, "numpy", beneath=True)) == [f"numpy=={numpy.__version__}"]
    with pytest.raises(ResolveError, match=f"numpy=={numpy.__version__}"):
        lock(index, "numpy==1.0", beneath=True)


def test_a_host_without_uv_says_what_to_do(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(index / "python"))
    with pytest.raises(ResolveError, match="has no uv, which makes environments"):
        lock(index, "pair", PATH=str(index))
    making = Making(JobEnvironment(lock=index / "lock"), index)  # of a host that has joined since
    assert "has no uv" in asyncio.run(making.run({"PATH": str(index)}, index)).error
    sent = made_for_jobs().parent / "env" / "uv"  # by an `up` over ssh
    sent.parent.mkdir()
    sent.touch(mode=0o700)
    assert find_uv({"PATH": str(index)}) == str(sent)
