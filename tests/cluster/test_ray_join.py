"""What is said of a Ray that cannot be joined; the real refusals are in tests/e2e/test_existing_ray.py."""

import platform

import pytest
import ray

from cluster.errors import ClusterError
from cluster.ray_join import _require_same_versions


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ({"ray_version": "2.40.0"}, "has Ray 2.40.0 and Python"),
        ({"python_version": "3.9.20"}, "and Python 3.9.20, expected Ray"),
    ],
)
def test_versions_that_differ_are_told_with_both(theirs: dict[str, str], words: str) -> None:
    ours = {"ray_version": ray.__version__, "python_version": platform.python_version()}
    _require_same_versions("head:6379", ours)
    with pytest.raises(ClusterError) as refused:
        _require_same_versions("head:6379", ours | theirs)
    assert words in str(refused.value) and f"expected Ray {ray.__version__}" in str(refused.value)


def test_what_says_no_version_is_refused() -> None:
    with pytest.raises(ClusterError, match="has Ray unknown and Python unknown"):
        _require_same_versions("head:6379", {})
