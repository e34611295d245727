"""What an observer makes of what a rank's agent says, by its own clock."""

from types import SimpleNamespace
from typing import Any

import pytest

from launcher.attempt import HostNews
from launcher.gang_watch import GangWatch
from launcher.timeline import Timeline


def news(silent_s: float = 0.1, state: str = "S", **said: Any) -> HostNews:
    place = {"phase": "run", "step": 1, "total": 99, "moves": 5, "launches": 3, "since": 0.0, "own_s": 0.0}
    return HostNews(progress={"type": "progress", **place, **said}, silent_s=silent_s, state=state)


def test_a_rank_stands_until_it_launches_or_moves() -> None:
    timeline = Timeline(0, "h0", 100.0)
    timeline.hear(101.0, news())
    timeline.hear(104.0, news())
    assert timeline.at(105.0).stood_s == 4.0
    timeline.hear(106.0, news(launches=4))
    assert timeline.at(107.0).stood_s == 1.0
    timeline.hear(108.0, news(launches=4, moves=6, step=2))
    assert (timeline.at(109.0).stood_s, timeline.at(109.0).step) == (1.0, 2)


def test_the_silence_of_a_rank_is_not_that_of_its_host() -> None:
    timeline = Timeline(0, "h0", 100.0)
    assert timeline.at(130.0).host_silent_s == 0.0, "nobody has asked yet"
    timeline.hear(130.0, news(silent_s=11.0, state="T"))
    rank = timeline.at(132.0)
    assert (rank.silent_s, rank.host_silent_s, rank.state) == (13.0, 2.0, "T")


def test_an_observer_that_stood_still_blames_nobody() -> None:
    timeline = Timeline(0, "h0", 100.0)
    timeline.hear(101.0, news())
    timeline.forgive(20.0)
    rank = timeline.at(122.0)
    assert (rank.host_silent_s, rank.stood_s) == (1.0, 1.0)


def test_seconds_of_its_own_are_per_step_and_need_a_while_to_be_known() -> None:
    timeline = Timeline(0, "h0", 0.0)
    for second in range(1, 10):
        timeline.hear(float(second), news(step=2 * second, own_s=0.5 * second))
    assert timeline.at(9.0).own_step_s is None
    for second in range(10, 60):
        timeline.hear(float(second), news(step=2 * second, own_s=0.5 * second))
    rank = timeline.at(60.0)
    assert (rank.own_step_s, rank.own_share) == (0.25, 0.5)


def test_a_rank_that_mostly_waits_is_measured_all_the_same() -> None:
    timeline = Timeline(0, "h0", 0.0)
    for second in range(1, 13):  # it is found in "run" once, at its last step
        timeline.hear(float(second), news(phase="run" if second == 12 else "agree", step=second, own_s=0.1 * second))
    rank = timeline.at(12.0)
    assert rank.own_step_s is not None
    assert (round(rank.own_step_s, 6), round(rank.own_share, 6)) == (0.1, 0.1)


@pytest.mark.parametrize(("step_s", "told_s"), [(0.1, 11.0), (1.0, 11.0), (8.0, 48.0), (20.0, 120.0), (60.0, 360.0)])
def test_a_slow_rank_is_measured_however_long_its_steps_take(step_s: float, told_s: float) -> None:
    timeline = Timeline(0, "h0", 0.0)
    known = []
    for second in range(1, 1000):
        step = int(second / step_s)
        timeline.hear(float(second), news(step=step, own_s=0.3 * step * step_s))
        rank = timeline.at(float(second))
        if rank.own_step_s is not None:
            known.append(second)
            assert (round(rank.own_step_s, 6), round(rank.own_share, 6)) == (round(0.3 * step_s, 6), 0.3)
    assert known == list(range(int(told_s), 1000))
    assert len(timeline._own) <= 40, "what it keeps does not grow with the job"


def test_steps_that_are_counted_anew_are_measured_anew() -> None:
    timeline = Timeline(0, "h0", 0.0)
    for second in range(1, 1000):
        timeline.hear(float(second), news(step=second % 500 + 1, own_s=0.3 * second))
        own_step_s = timeline.at(float(second)).own_step_s
        assert own_step_s is None or round(own_step_s, 6) == 0.3
    assert own_step_s is not None and len(timeline._own) <= 40


PHASES = ("gather", "run", "replica check", "run", "checkpoint")


def events(*phases: str) -> list[dict[str, Any]]:
    return [{"type": "phase", "phase": phase} for phase in phases]


def test_a_rank_whose_thread_is_silent_is_where_its_events_tell() -> None:
    timeline = Timeline(0, "h0", 0.0)
    stalled = news(moves=3, events=3, phase="replica check").progress
    timeline.hear(1.0, HostNews(events=events(*PHASES[:3]), progress=stalled))
    timeline.hear(2.0, HostNews(events=events(*PHASES[3:]), progress=stalled))
    timeline.hear(9.0, HostNews(progress=stalled))
    rank = timeline.at(10.0)
    assert (rank.phase, rank.moves, rank.stood_s) == ("checkpoint", 5, 8.0)
    report = {"type": "report", "step": 7, "total": 99, "launches": 12}
    timeline.hear(11.0, HostNews(events=[*events("run"), report], progress=stalled))
    rank = timeline.at(12.0)
    assert (rank.phase, rank.step, rank.launches, rank.place, rank.stood_s) == ("run", 7, 12, (6, 1, 12, 0), 1.0)


def test_events_that_come_after_what_the_thread_says_of_them_count_once() -> None:
    timeline = Timeline(0, "h0", 0.0)
    timeline.hear(1.0, HostNews(events=events(*PHASES[:2]), progress=news(moves=5, events=5, phase=PHASES[4]).progress))
    timeline.hear(2.0, HostNews(events=events(*PHASES[2:])))
    rank = timeline.at(4.0)
    assert (rank.phase, rank.moves, rank.stood_s) == ("checkpoint", 5, 3.0)


def test_a_finding_is_told_once_until_its_rank_has_moved() -> None:
    watch = GangWatch(["h0", "h1"])
    for rank in (0, 1):
        watch.hear(rank, news())
    assert watch.look() == []
    watch.hear(1, news(silent_s=11.0))
    assert [finding.kind for finding in watch.look()] == ["silent"]
    assert watch.look() == []
    watch.hear(1, news(moves=6))
    assert watch.look() == []
    watch.hear(1, news(moves=6, silent_s=11.0))
    assert [finding.ranks for finding in watch.look()] == [(1,)]
    watch.finish(1, ended=True)
    assert watch.look() == []


def test_after_a_cut_ranks_stand_from_when_they_can_move_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("launcher.gang_watch.time", SimpleNamespace(monotonic=lambda: now))
    watch = GangWatch(["h0", "h1", "h2"])
    for rank in (0, 1, 2):
        watch.hear(rank, news())
    now = 8.0
    for rank in (0, 1, 2):
        assert watch.host_silent_s(rank) == 8.0
        watch.hear(rank, news())
    assert [rank.stood_s for rank in watch.ranks()] == [0.0, 0.0, 0.0]
    while now < 20.0:
        now += 2.0
        for rank in (0, 1, 2):
            watch.hear(rank, news())
    assert [rank.stood_s for rank in watch.ranks()] == [4.0, 4.0, 4.0], "8 s more than the cut took"
