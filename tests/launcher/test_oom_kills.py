"""A kill for want of memory explains an end only where it has just happened."""

import dataclasses

import pytest

from launcher.oom_kills import WINDOW_S, OomWatch


@dataclasses.dataclass
class Kernel:
    """Its clock, in seconds, and what it has killed."""

    now: float = 0.0
    kills: int | None = 0

    def watch(self) -> OomWatch:
        return OomWatch(count=lambda: self.kills, clock=lambda: self.now)

    def pass_by(self, watch: OomWatch, seconds: float) -> None:
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            watch.look()


@pytest.mark.parametrize(("seconds", "counts"), [(0.0, True), (WINDOW_S - 1.0, True), (2 * WINDOW_S + 1.0, False)])
@pytest.mark.parametrize("runs_s", [0.5, 100.0, 1000.0])
def test_a_kill_counts_for_seconds(runs_s: float, seconds: float, counts: bool) -> None:
    kernel = Kernel()
    watch = kernel.watch()
    kernel.pass_by(watch, runs_s)
    kernel.kills = 1
    kernel.pass_by(watch, seconds)
    assert watch.has_killed() is counts


def test_a_kill_from_before_the_rank_began_does_not_count() -> None:
    assert Kernel(kills=3).watch().has_killed() is False


def test_a_kernel_that_does_not_count_says_nothing() -> None:
    assert Kernel(kills=None).watch().has_killed() is None
