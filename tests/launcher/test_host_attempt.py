"""What an agent answers about its rank: every event once, only the last progress, and how the process is."""

import asyncio
import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.attempt import HostNews, RankTask
from launcher.certificates import RankFiles
from launcher.command import FOLDER, Command
from launcher.command_process import start_command
from launcher.host_attempt import HostAttempt
from launcher.oom_kills import OomWatch
from launcher.rank_process import RankProcess
from launcher.template_process import TemplateProcess
from launcher.user_folder import NAME, pack_folder
from tests.conftest import ROOT

TASK = RankTask(
    attempt=1,
    resume=False,
    keep=3,
    program_barrier=True,
    faults=(),
    attempt_id="job.1.0", job="job", rank=0, num_ranks=1, workload="psum-check", settings={}, files={}, seed=0,
    checkpoint_every=0, check_every=0, jax_config={}, code_digest="digest", storage="/nowhere",
)  # fmt: skip


TLS = RankFiles(key="", chain="", authority="", peer_uri_prefix="")


async def attempt_of(folder: Path, code: str) -> tuple[HostAttempt, RankProcess, TemplateProcess]:
    """A rank at work in which `import jax` runs `code`."""
    for name in ("modules", "work", "ranks"):
        (folder / name).mkdir()
    (folder / "modules" / "jax.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder / 'modules'}", "SPMD_LAUNCH_LEASE_S": "30"}
    template = await TemplateProcess.start(environment, folder, "digest")
    process = await template.fork()
    attempt = HostAttempt(TASK, process, folder / "attempt")
    await process.assign(attempt.assignment("h0", "127.0.0.1", folder, TLS), attempt.hear, attempt.silence_s)
    return attempt, process, template


async def until_progress(attempt: HostAttempt, after: int) -> HostNews:
    deadline = time.monotonic() + 60.0
    news = await attempt.news(after, 0.1)
    while news.progress is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
        news = await attempt.news(after, 0.1)
    return news


def run(program: Any) -> None:
    asyncio.run(asyncio.wait_for(program, 120.0))


def test_events_are_kept_until_they_have_arrived_and_of_progress_only_the_last(tmp_path: Path) -> None:
    async def program() -> None:
        attempt, process, template = await attempt_of(tmp_path, "import time; time.sleep(600)")
        first = await until_progress(attempt, 0)
        assert [event["type"] for event in first.events] == ["phase"]
        assert first.progress is not None and first.progress["phase"] == "import"
        assert (await attempt.news(0, 0.1)).events == first.events, "the answer may have been lost"
        attempt.hear({"type": "report", "step": 1})
        second = await attempt.news(1, 0.1)
        assert [event["type"] for event in second.events] == ["report"]
        assert (await attempt.news(0, 0.1)).events == second.events, "an old question drops nothing"
        assert (await attempt.news(2, 0.1)).events == []
        process.kill()
        await process.wait()
        assert (await attempt.news(2, 0.0)).state == ""
        await template.end()

    run(program())


@pytest.mark.parametrize(
    ("says", "abandoned"),
    [
        ("Terminating process because the JAX distributed service detected fatal errors. This most likely ...", True),
        ("terminate called after throwing an instance of 'gloo::IoException'", True),
        ("Traceback ...\njax.errors.JaxRuntimeError: INTERNAL: Gloo all-reduce failed: closed by peer", True),
        ("[Gloo] Rank 0 is connected to 1 peer ranks", False),
        ("F1122 16:00:49.8 xla.cc:80] Check failed: buffer.size() == 4", False),
        ("malloc(): corrupted top size", False),
    ],
)
@pytest.mark.parametrize(("ends", "code"), [("os.abort()", -signal.SIGABRT), ("os._exit(1)", 1)])
def test_an_end_by_the_loss_of_a_peer_is_told_from_one_of_the_ranks_own(
    tmp_path: Path, says: str, abandoned: bool, ends: str, code: int
) -> None:
    async def program() -> None:
        prints = f"print({says!r}, *range(9), sep=chr(10), file=sys.stderr, flush=True)"
        attempt, _, template = await attempt_of(tmp_path, f"import os, sys; {prints}; {ends}")
        await attempt.follow()
        (end,) = [event for event in (await attempt.news(0, 0.1)).events if event["type"] == "exit"]
        assert (end["code"], end["abandoned"]) == (code, abandoned)
        await template.end()

    run(program())


def test_a_stopped_rank_is_silent_and_its_state_is_told(tmp_path: Path) -> None:
    async def program() -> None:
        attempt, process, template = await attempt_of(tmp_path, "import time; time.sleep(600)")
        assert (await until_progress(attempt, 0)).silent_s < 2.0
        os.kill(process.pid, signal.SIGSTOP)
        async with asyncio.timeout(60.0):
            while (news := await attempt.news(1, 0.1)).state != "T" or news.silent_s < 1.9:
                await asyncio.sleep(0.05)
        process.kill()
        await process.wait()
        await template.end()

    run(program())


def test_an_end_by_the_lease_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.rank_process.LEASE_S", 1.0)

    async def program() -> None:
        attempt, _, template = await attempt_of(tmp_path, "import time; time.sleep(600)")
        await attempt.follow()
        end = (await attempt.news(0, 0.0)).events[-1]
        assert (end["type"], end["code"]) == ("exit", -signal.SIGKILL)
        assert end["lost"].startswith("its lease ran out: the supervisor had not asked for ")
        await template.end()

    run(program())


class UnknowingKernel(OomWatch):
    """It does not count what it kills; in place of that this says whether it was asked meanwhile."""

    looks = 0

    def look(self) -> None:
        self.looks += 1

    def has_killed(self) -> bool | None:
        return None if self.looks else False


def test_the_kernel_is_asked_while_the_rank_runs_whether_it_kills_for_want_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.host_attempt.OomWatch", UnknowingKernel)

    async def program() -> None:
        attempt, process, template = await attempt_of(tmp_path, "import time; time.sleep(600)")
        asyncio.get_running_loop().call_later(1.0, process.kill)
        await attempt.follow()
        (end,) = [event for event in (await attempt.news(0, 0.0)).events if event["type"] == "exit"]
        assert (end["code"], end["out_of_memory"]) == (-signal.SIGKILL, None)
        await template.end()

    run(program())


async def events_of_command(folder: Path, script: str) -> list[dict[str, Any]]:
    """All that a shell command's attempt has to say, its folder being empty but for `a.txt`."""
    (folder / "project").mkdir()
    (folder / "project" / "a.txt").write_text("a")
    (folder / "files" / "d").mkdir(parents=True)
    (folder / "files" / "d" / NAME).write_bytes(pack_folder(folder / "project"))
    (folder / "ranks").mkdir()
    task = dataclasses.replace(
        TASK,
        command=Command(words=["bash", "-c", script]),
        files={FOLDER: ("d", NAME)},
        storage=str(folder / "storage"),
    )
    place = folder / "attempts" / "a"
    process, _ = await start_command(task, os.environ, host=folder, code=ROOT, folder=place)
    attempt = HostAttempt(task, process, place)
    await asyncio.wait_for(attempt.follow(), 60.0)
    return (await attempt.news(0, 0.0)).events


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("touch $SPMD_LAUNCH_JOB_DIR/m; mkdir m; touch m/x", "cannot come: m/x (File exists)"),
        ("rm ../unpacked.json; touch x", "No such file or directory"),
        ("echo x > ../unpacked.json; touch x", "as it cannot come: Expecting value"),
    ],
)
def test_the_end_is_told_first_and_then_that_what_was_written_cannot_come(
    tmp_path: Path, script: str, words: str
) -> None:
    async def program() -> None:
        events = await events_of_command(tmp_path, script)
        assert [event["type"] for event in events] == ["result", "exit", "log", "brought-back"]
        assert events[1]["code"] == 0 and words in events[2]["text"]

    run(program())


def test_a_character_that_comes_in_two_reads_is_one(tmp_path: Path) -> None:
    async def program() -> None:
        events = await events_of_command(tmp_path, r"printf 'caf\303'; sleep 0.5; printf '\251, \303'")
        assert "".join(event["text"] for event in events if event["type"] == "log") == "caf\u00e9, \ufffd"

    run(program())
