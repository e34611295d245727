"""Who is behind whom, by what the ranks themselves have gone through."""

import dataclasses
from typing import Any

import pytest

from launcher.attempt import HostNews
from launcher.place import Place
from launcher.rank.progress import Progress
from launcher.timeline import RankProgress, Timeline
from launcher.watchdog import judge

START = ("import", "rendezvous", "environment", "run", "load", "run", "compile train", "run")
PLOT = ("compile plot", "run")
REPORT = {"type": "report", "step": 1, "total": 9}


def came(rank: int, *course: str | int) -> RankProgress:
    """Where a rank is that has entered these phases, launched so many programs, and reported, in this order."""
    told: list[dict[str, Any]] = []
    progress, launched = Progress(told.append), [0]
    progress.launches = lambda: {"launches": launched[0]}
    for passed in course:
        if isinstance(passed, int):
            launched[0] += passed
        else:
            progress.emit(REPORT if passed == "report" else {"type": "phase", "phase": passed})
    timeline = Timeline(rank, f"h{rank}", 0.0)
    news = HostNews(events=told, progress=progress.message(), silent_s=0.1, state="S")
    timeline.hear(1.0, news)
    timeline.hear(150.0, dataclasses.replace(news, events=()))
    return timeline.at(150.0)


def named(*courses: tuple[str | int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    ranks = [came(rank, *START, *course) for rank, course in enumerate(courses)]
    return [(finding.kind, finding.ranks) for finding in judge(ranks) if finding.fatal]


@pytest.mark.parametrize(
    ("moment", "courses", "expected"),
    [
        ("rank 0 has compiled alone, long ago", [(10, *PLOT, 90), (101,)], [("stuck", (0,))]),
        ("and just now", [(100, *PLOT), (101,)], [("stuck", (0,))]),
        ("and is ahead by a launch", [(10, *PLOT, 91), (100,)], [("stuck", (1,))]),
        ("and by a report", [(10, *PLOT, 90, "report"), (100,)], [("stuck", (1,))]),
        ("and all hang in one launch", [(10, *PLOT, 90), (100,)], []),  # which is ended later than this moment
        ("a phase of its own, and others have met without it", [(9, "mine"), (9, "gather")], []),  # 600 s are for it
        ("phases around a meeting of all", [(9, "mine", "gather", "run", "run", 90), (9, "gather", "run", 91)],
         [("stuck", (0,))]),
        ("all compile, and one does not come to it", [(9, "report", "compile last"), (9, "report")], [("stuck", (1,))]),
        ("all compile two, and one hangs between", [(*PLOT, "compile train"), PLOT], [("stuck", (1,))]),
        ("one does not come to a meeting", [(9, "report", "gather"), (9, "report")], [("stuck", (1,))]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_table(moment: str, courses: list[tuple[str | int, ...]], expected: list[Any]) -> None:
    assert named(*courses) == expected


def test_whoever_counts_the_events_comes_to_the_same_place() -> None:
    told: list[dict[str, Any]] = []
    progress, place = Progress(told.append), Place()
    for phase in (*START, "profile", "run", *PLOT, "replica check"):
        progress.emit({"type": "phase", "phase": phase, **({"aside": True} if phase == "profile" else {})})
    progress.emit(REPORT)
    for event in told:
        place = place.after(event)
    said = progress.message()
    assert place == Place(**{name: said[name] for name in vars(place)})
    assert (place.moves, place.reports, place.detours, place.events) == (7, 1, 0, len(told))
