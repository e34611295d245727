"""When a cluster is to take itself down, second by second; no clock is waited for."""

from collections.abc import Iterable, Mapping

import pytest

from cluster.spec import ClusterSpec, LocalProviderSpec
from launcher.limits import Clock, Reason, because, limits_of, warning

IDLE, LIFETIME = Reason.IDLE, Reason.LIFETIME


def ends_at(
    limits: Mapping[Reason, float], busy: Iterable[int] = (), looks: Iterable[int] = range(0, 20000, 10)
) -> tuple[int, int, Reason] | None:
    """When a cluster that came up at 0 warns, and begins to end, and why; looked at only at these seconds."""
    at_work = set(busy)
    clock, warned = Clock(up_since=0.0, idle_since=0.0), -1
    for now in looks:
        clock = clock.moved_on(limits, busy=now in at_work, now=float(now))
        end = clock.next_end(limits)
        warned = now if end and end.reason in clock.warned and warned < 0 else warned if clock.warned else -1
        if end is not None and end.begins_at <= now:
            return warned, now, end.reason
    return None


@pytest.mark.parametrize(
    ("limits", "busy", "expected"),
    [
        ({}, (), None),
        ({IDLE: 1800.0}, (), (1500, 1800, IDLE)),
        ({IDLE: 60.0}, (), (30, 60, IDLE)),  # a short one is warned of in its middle
        ({IDLE: 1800.0}, range(0, 20000), None),
        ({IDLE: 1800.0}, range(0, 4001), (5510, 5810, IDLE)),
        ({IDLE: 1800.0}, range(1600, 1700), (3200, 3500, IDLE)),  # a job in the last minutes: all begins anew
        ({LIFETIME: 3600.0}, range(0, 20000), (3300, 3480, LIFETIME)),  # with two minutes for last checkpoints
        ({LIFETIME: 40.0}, (), (20, 30, LIFETIME)),
        ({IDLE: 1800.0, LIFETIME: 3600.0}, range(0, 20000), (3300, 3480, LIFETIME)),
        ({IDLE: 1800.0, LIFETIME: 3600.0}, (), (1500, 1800, IDLE)),
        ({IDLE: 1800.0, LIFETIME: 1900.0}, range(0, 101), (1600, 1780, LIFETIME)),
    ],
)
def test_it_warns_and_ends(
    limits: Mapping[Reason, float], busy: Iterable[int], expected: tuple[int, int, Reason] | None
) -> None:
    assert ends_at(limits, busy) == expected


@pytest.mark.parametrize("limits", [{IDLE: 1800.0}, {LIFETIME: 1800.0}])
def test_a_warning_is_given_its_time_when_nobody_looked_before(limits: Mapping[Reason, float]) -> None:
    late = [*range(0, 100, 10), *range(9000, 20000, 10)]  # the supervisor was frozen, or away
    warned, began, reason = ends_at(limits, looks=late) or (0, 0, None)
    assert warned == 9000 and began == (9300 if reason is IDLE else 9180)


def test_a_supervisor_that_was_started_again_counts_on_from_what_was_kept() -> None:
    limits = {IDLE: 1800.0, LIFETIME: 7200.0}
    clock = Clock(up_since=0.0, idle_since=100.0).moved_on(limits, busy=False, now=900.0)
    assert (clock.up_since, clock.idle_since) == (0.0, 100.0)
    assert clock.moved_on(limits, busy=True, now=900.0).idle_since is None


def test_words() -> None:
    spec = ClusterSpec(
        name="pod", provider=LocalProviderSpec(), num_hosts=1, devices_per_host=1, idle_down_after="30m",
        max_lifetime="12h",
    )  # fmt: skip
    limits = limits_of(spec)
    assert limits == {IDLE: 1800.0, LIFETIME: 43200.0}
    clock = Clock(up_since=0.0, idle_since=0.0).moved_on(limits, busy=False, now=1500.0)
    end = clock.next_end(limits)
    assert end is not None
    assert warning(end, spec, now=1500.0, wall="14:03:00 UTC") == (
        "cluster pod goes down at 14:03:00 UTC, in 5m, after 30m without a job; a job keeps it up"
    )
    assert because(LIFETIME, spec) == "12h after `up` (max_lifetime)"
    assert not limits_of(ClusterSpec(name="a", provider=LocalProviderSpec(), num_hosts=1, devices_per_host=1))
