"""Times as people write them."""

import pytest

from cluster.durations import check_limit, in_units, seconds_of
from cluster.errors import ClusterConfigError
from cluster.ray_spec import RayProviderSpec
from cluster.spec import ClusterSpec, LocalProviderSpec


@pytest.mark.parametrize(
    ("text", "seconds", "canonical"),
    [
        ("45s", 45, "45s"),
        ("30m", 1800, "30m"),
        ("90m", 5400, "1h30m"),
        ("2h", 7200, "2h"),
        ("1d12h", 129600, "1d12h"),
        ("36h", 129600, "1d12h"),
        ("1d2h3m4s", 93784, "1d2h3m4s"),
        ("365d", 31536000, "365d"),
    ],
)
def test_a_time_is_kept_in_the_same_units_however_it_is_written(text: str, seconds: int, canonical: str) -> None:
    assert seconds_of(text) == seconds
    assert check_limit("max_lifetime", text) == canonical == in_units(seconds)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("30", "did you mean '30m'?"),
        ("30 min", "did you mean '30m'?"),
        ("2 hours", "did you mean '2h'?"),
        ("1 day 12 hrs", "did you mean '1d12h'?"),
        ("90 Minutes", "did you mean '90m'?"),
        ("1h 30m", "did you mean '1h30m'?"),
        ("30m2h", ""),
        ("1.5h", ""),
        ("-5m", ""),
        ("", ""),
        ("soon", ""),
        ("0s", ""),
        ("4s", ""),
        ("366d", ""),
        ("99999999999d", ""),
        (30, ""),
        (None, ""),
    ],
)
def test_what_is_no_time_is_refused_with_what_may_be_meant(value: object, hint: str) -> None:
    with pytest.raises(ClusterConfigError) as refused:
        check_limit("idle_down_after", value)
    text = str(refused.value)
    assert text.startswith("idle_down_after: must be none, or a time from 5s to 365d, as 30m or 1d12h, not ")
    assert text.endswith(f"; {hint}" if hint else repr(value))


def _spec(**more: str | None) -> ClusterSpec:
    return ClusterSpec(name="a", provider=LocalProviderSpec(), num_hosts=1, devices_per_host=1, **more)  # type: ignore[arg-type]


def test_limits_of_a_cluster() -> None:
    plain = _spec()
    assert (plain.idle_limit, plain.lifetime_limit) == (None, None)
    limited = _spec(idle_down_after="90m", max_lifetime="24h")
    assert (limited.idle_limit, limited.lifetime_limit) == ("1h30m", "1d")
    assert limited == _spec(idle_down_after="1h30m", max_lifetime="1d") == ClusterSpec.from_json(limited.to_json())
    assert _spec(idle_down_after="none", max_lifetime="none").idle_limit is None


def test_slices_of_cloud_tpu_have_a_limit_unless_it_is_taken_away() -> None:
    pod = {
        "name": "a",
        "provider": {"type": "gcp-tpu", "project": "my-project", "zone": "us-west4-a"},
        "accelerator": "tpu-v5e-16",
    }
    spec = ClusterSpec.from_json(pod)
    assert (spec.idle_limit, spec.lifetime_limit) == ("1h", None)
    assert ClusterSpec.from_json(pod | {"idle_down_after": "none"}).idle_limit is None


def test_a_ray_that_is_not_ours_has_no_limits() -> None:
    with pytest.raises(ClusterConfigError, match="idle_down_after: is for hosts of ours; those of provider ray go on"):
        ClusterSpec(
            name="a", provider=RayProviderSpec(address="h:1"), num_hosts=1, devices_per_host=1, idle_down_after="1h"
        )
