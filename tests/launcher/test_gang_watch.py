"""Who is named, and when: ranks and agents that behave as told, by a clock that is told too."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.attempt import HostNews
from launcher.gang_watch import GangWatch
from launcher.watchdog import Bounds, Finding

TICK_S = 0.25
BOUNDS = Bounds(host_lost_s=15.0)
HUNG_AT_S = 20.0

Told = list[tuple[float, Finding]]
Watch = Callable[..., Told]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Findings of `seconds` in which each rank is where `said(rank, now)` puts it, and `answers(rank, now)` or not."""

    def run(
        num_ranks: int,
        seconds: float,
        said: Callable[[int, float], dict[str, Any]],
        answers: Callable[[int, float], bool] = lambda rank, now: True,
    ) -> Told:
        now = 0.0
        monkeypatch.setattr("launcher.gang_watch.time", SimpleNamespace(monotonic=lambda: now))
        watch = GangWatch([f"h{rank}" for rank in range(num_ranks)], BOUNDS)
        found: Told = []
        for tick in range(1, int(seconds / TICK_S) + 1):
            now = tick * TICK_S
            for rank in range(num_ranks):
                if answers(rank, now):
                    progress = {"phase": "run", "step": 0, "total": 9, "moves": 5, "own_s": 0.0} | said(rank, now)
                    watch.hear(rank, HostNews(progress=progress, silent_s=0.1, state="S"))
            if now == int(now):
                found += [(now, finding) for finding in watch.look()]
        return found

    return run


def hangs(rank: int, now: float) -> dict[str, Any]:
    """All ranks launch once a second; then rank 1 hangs, and the others wait for it, one launch ahead."""
    launches = int(min(now, HUNG_AT_S)) + (rank != 1 and now > HUNG_AT_S)
    return {"launches": launches, "usual_s": 0.4, "longest_s": 0.5}


def stuck(found: Told) -> list[tuple[float, tuple[int, ...]]]:
    return [(now, finding.ranks) for now, finding in found if finding.kind == "stuck" and finding.fatal]


def test_a_hung_rank_is_named_when_its_bound_is_over(watched: Watch) -> None:
    (now, ranks), *_ = stuck(watched(4, 60.0, hangs))
    assert ranks == (1,) and HUNG_AT_S + 7.5 <= now <= HUNG_AT_S + 9.0


@pytest.mark.parametrize("busy", [0, 1])
@pytest.mark.parametrize("gap_s", [3.5, 8.0, 14.0])
def test_a_hung_rank_is_named_though_an_agent_is_silent_again_and_again(
    watched: Watch, busy: int, gap_s: float
) -> None:
    found = watched(3, 120.0, hangs, lambda rank, now: rank != busy or now % gap_s < TICK_S)
    (now, ranks), *_ = stuck(found)
    assert ranks == (1,)
    assert now <= HUNG_AT_S + 7.5 + 2 * BOUNDS.host_lost_s + gap_s + 2.0


def test_a_hung_rank_is_named_though_some_agent_is_always_silent(watched: Watch) -> None:
    found = watched(12, 120.0, hangs, lambda rank, now: (now + 2 * rank) % 24 < 12)
    (now, ranks), *_ = stuck(found)
    assert ranks == (1,)
    assert now <= HUNG_AT_S + 7.5 + 2 * BOUNDS.host_lost_s + 14.0


@pytest.mark.parametrize("cut_off", [0, 1])
@pytest.mark.parametrize("cut_s", [4.0, 8.0, 14.0])
def test_nobody_is_blamed_for_a_cut_that_is_survived(watched: Watch, cut_s: float, cut_off: int) -> None:
    """A host is cut off, behind or ahead; its connections come back as late as they may, and all stand until then."""
    begin_s = HUNG_AT_S + 0.5  # it has been heard who is ahead
    back_s = begin_s + 2 * cut_s + 5.0  # and some time of the step itself

    def said(rank: int, now: float) -> dict[str, Any]:
        return hangs(rank, now) if now < back_s else {"launches": int(now), "usual_s": 0.4}

    found = watched(3, 120.0, said, lambda rank, now: rank != cut_off or not begin_s < now <= begin_s + cut_s)
    assert [finding for _, finding in found if finding.kind != "host-silent" or finding.fatal] == []


def test_a_rank_is_not_judged_by_where_it_was_when_its_host_last_answered(watched: Watch) -> None:
    """Rank 1 goes on while its agent is silent: it is rank 0 that hangs, which nobody can know before it answers."""

    def said(rank: int, now: float) -> dict[str, Any]:
        return {"launches": int(min(now, HUNG_AT_S)) + (rank == 1 and now > HUNG_AT_S), "usual_s": 0.4}

    for silent_s in (5.0, 13.0):
        found = watched(2, 90.0, said, lambda rank, now, s=silent_s: rank == 0 or not HUNG_AT_S < now < HUNG_AT_S + s)
        assert {ranks for _, ranks in stuck(found)} == {(0,)}


def test_a_rank_that_has_waited_for_another_is_not_named_as_soon_as_that_one_has_passed_it(watched: Watch) -> None:
    """Rank 0 compiles for a minute; then both go on, and it is heard of half a second before rank 1."""

    def said(rank: int, now: float) -> dict[str, Any]:
        goes_on = now >= (80.0 if rank == 0 else 80.5)
        phase = "run" if goes_on or rank == 1 else "compile train"
        return {"phase": phase, "launches": int(now) if goes_on else 20 + rank, "usual_s": 0.4, "longest_s": 0.5}

    # The look at 80 s finds rank 0 ahead of rank 1, which has stood for more than a minute by then.
    assert stuck(watched(2, 100.0, said)) == []
