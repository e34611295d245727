"""What is said of a Ray that cannot be joined; the real refusals are in tests/e2e/test_existing_ray.py."""

import platform
import socket

import pytest
import ray
from ray.core.generated import gcs_pb2

from cluster.errors import ClusterError
from cluster.ray_join import _require_node_here, _require_same_versions


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


def test_a_machine_that_is_no_node_is_told_where_to_go() -> None:
    elsewhere = gcs_pb2.GcsNodeInfo(
        node_id=b"\x01" * 28, node_manager_address="10.0.0.7", node_manager_hostname="pod-7"
    )
    with pytest.raises(ClusterError) as refused:
        _require_node_here("10.0.0.7:6379", [elsewhere])
    text = str(refused.value)
    assert f"this machine ({socket.gethostname()}) is no node of the Ray at 10.0.0.7:6379" in text
    assert "nodes: 10.0.0.7 (pod-7)" in text and "kubectl exec" in text
    assert "`ray start --address=10.0.0.7:6379 --num-cpus=0`" in text
