"""Where a job's checkpoints lie, and whether its hosts reach them there."""

from pathlib import Path

import pytest

from cluster.spec import ClusterSpec, LocalProviderSpec
from launcher.storage import is_on_head, storage_root


def spec(storage_path: str | None) -> ClusterSpec:
    return ClusterSpec(
        name="c", provider=LocalProviderSpec(), num_hosts=2, devices_per_host=1, storage_path=storage_path
    )


@pytest.mark.parametrize(
    ("storage_path", "root", "on_head"),
    [
        (None, "{home}/storage", False),  # emulated hosts share the head's disk
        ("none", "{home}/storage", True),
        ("/data/ckpt/", "/data/ckpt", False),
        ("gs://bucket/a", "gs://bucket/a", False),
    ],
)
def test_where_checkpoints_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage_path: str | None, root: str, on_head: bool
) -> None:
    monkeypatch.setenv("SPMD_LAUNCH_HOME", str(tmp_path))
    found = storage_root(storage_path)
    assert found == root.format(home=tmp_path.resolve())
    assert is_on_head(spec(storage_path), f"{found}/job.b7") is on_head


def test_a_job_is_kept_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed on a cluster without a shared storage, a job goes on in the storage that it had."""
    monkeypatch.setenv("SPMD_LAUNCH_HOME", str(tmp_path))
    assert not is_on_head(spec("none"), "gs://bucket/a/job.b7")
    assert not is_on_head(spec("none"), "/data/ckpt/job.b7")
