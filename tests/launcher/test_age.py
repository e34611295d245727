"""What `status` says of a cluster's age, cost and end, in words."""

import datetime
from collections.abc import Sequence

import pytest

from cluster import prices
from cluster.prices import Price
from cluster.spec import LocalProviderSpec
from launcher.cli import age
from launcher.cli.age import age_and_cost, describe_age, describe_end, short
from tests.cluster.test_record import _cluster

pytestmark = pytest.mark.usefixtures("state_folder")

LIMITS = {
    "idle_down_after": "30m", "max_lifetime": None, "idle_s": 720.0, "ends_in_s": 1080.0, "ends_by": "idle_down_after",
    "warning": "", "going_down": "", "problem": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0s"), (45, "45s"), (90, "1m30s"), (1800, "30m"), (3930, "1h5m"), (86400 * 2 + 3 * 3600 + 61, "2d3h")],
)
def test_a_time_is_short(seconds: float, text: str) -> None:
    assert short(seconds) == text


def _created_ago(hours: float) -> dict[str, object]:
    created = (datetime.datetime.now().astimezone() - datetime.timedelta(hours=hours)).isoformat(timespec="seconds")
    return age_and_cost(_cluster().spec, created)


def test_free_hosts_say_nothing_of_cost_and_a_clock_that_is_set_back_is_no_negative_age() -> None:
    told = _created_ago(2)
    assert 7199 <= told["age_s"] <= 7210 and told["cost"] is None
    assert _created_ago(-1)["age_s"] == 0.0
    assert describe_age({**told, "limits": LIMITS})[0].startswith("  up for 2h, without a job for 12m")


def test_what_is_paid_for_has_a_cost_or_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalProviderSpec, "is_paid", True)
    (_, line) = describe_age(_created_ago(1))
    assert line == "  cost so far unknown: no price of its hosts is known; prices.toml in the state folder may say one"
    price = Price(per_hour=3.0, date="2026-11-01", source="https://example.org", spot=True)
    monkeypatch.setattr(age, "price_of", lambda spec: price)
    told = _created_ago(2.5)
    assert describe_age(told)[1] == "  about $7.50 so far, at $3.00 an hour (of 2026-11-01, and spot prices change)"
    assert told["cost"]["source"] == "https://example.org"
    assert prices.price_of is not age.price_of


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, [" in 18m: idle_down_after is 30m"]),
        ({"ends_in_s": None, "ends_by": None}, ["  goes down after 30m without a job"]),
        ({"idle_down_after": None, "ends_in_s": None, "ends_by": None}, []),
        ({"warning": "cluster pod goes down at 14:03"}, ["! cluster pod goes down at 14:03"]),
        (
            {"going_down": "after 30m without a job", "problem": "permission denied"},
            ["! goes down, after 30m without a job: permission denied; it is tried again"],
        ),
    ],
)
def test_the_end_in_words(change: dict[str, object], words: Sequence[str]) -> None:
    lines = describe_end(LIMITS | change)
    assert len(lines) == len(words) and all(line.endswith(word) for line, word in zip(lines, words, strict=True))
