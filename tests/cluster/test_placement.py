"""Emulated accelerators on real Ray nodes: Ray places by slice as it would on TPU hosts, and hides no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ClusterError
from cluster.local import LocalProvider
from cluster.machine import LOOPBACK, ray_environment
from cluster.place_code import Code
from cluster.record import save_spec
from cluster.slices import SlicePlace
from cluster.spec import ClusterSpec, LocalProviderSpec
from tests.cluster.test_local import EMPTY_ARCHIVE
from tests.conftest import ROOT, assert_nothing_left

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),  # the holder is to outlive us
]


def asked_on(spec: ClusterSpec, program: str, home: Path) -> tuple[dict[str, Any], list[SlicePlace | None]]:
    """What a program of `placement_programs` finds on the hosts of a cluster that has no agents, and their places."""
    provider, code = LocalProvider(spec), Code("0" * 64, EMPTY_ARCHIVE)
    save_spec(spec)
    cluster = provider.create(code, lambda _: None, lambda: None)
    cluster.save()
    record = cluster.to_json() | {"holder": cluster.holder.to_json()}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.cluster.placement_programs", program, cluster.gcs_address],
            env=os.environ | ray_environment(provider.folder, LOOPBACK) | {"PYTHONPATH": str(ROOT)},
            cwd=ROOT, capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip
    finally:
        forced = provider.delete(code)
    assert done.returncode == 0, done.stderr
    assert not forced
    assert_nothing_left(record, home)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found, [host.place for host in cluster.hosts]


@pytest.mark.slow
def test_ray_places_by_emulated_slices(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_WORKER_ID", "7")  # of this machine: nothing of it may reach a host
    spec = ClusterSpec(
        name="pod", provider=LocalProviderSpec(), num_hosts=4, devices_per_host=4, accelerator="tpu-v4-16", emulate=True
    )
    found, places = asked_on(spec, "slices", home)
    assert [(place.slice, place.worker) for place in places if place] == [
        ("pod-slice-0", 0), ("pod-slice-0", 1), ("pod-slice-1", 0), ("pod-slice-1", 1),
    ]  # fmt: skip
    labels = found["labels"]["pod-3"]
    assert labels["ray.io/accelerator-type"] == "TPU-V4"
    assert {key: value for key, value in labels.items() if key.startswith("ray.io/tpu")} == {
        "ray.io/tpu-slice-name": "pod-slice-1",
        "ray.io/tpu-worker-id": "1",
        "ray.io/tpu-topology": "2x2x2",
        "ray.io/tpu-pod-type": "v4-16",
    }
    assert [found["resources"][f"pod-{k}"]["TPU"] for k in range(4)] == [4] * 4
    assert ["TPU-v4-16-head" in found["resources"][f"pod-{k}"] for k in range(4)] == [True, False, True, False]
    assert sorted(found["chosen"]) == [["pod-0", "pod-1"], ["pod-2", "pod-3"]]
    assert found["left"] == 0
    assert found["environment"]["TPU_ACCELERATOR_TYPE"] == "v4-16"
    assert found["environment"]["TPU_WORKER_ID"] in "01"


def gpus() -> ClusterSpec:
    return ClusterSpec(
        name="gpus", provider=LocalProviderSpec(), num_hosts=1, devices_per_host=2, accelerator="H100:2", emulate=True
    )


def test_ray_hides_no_gpu_from_a_process_that_holds_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found, places = asked_on(gpus(), "gpus", home)
    assert places == [None]
    assert found["labels"]["ray.io/accelerator-type"] == "H100"
    assert (found["resources"]["GPU"], found["resources"]["accelerator_type:H100"]) == (2, 1)
    ids, visible = found["sees"]
    assert sorted(ids) == ["0", "1"]
    assert visible is None


def test_gpus_that_are_hidden_already_are_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    save_spec(gpus())
    provider, code = LocalProvider(gpus()), Code("0" * 64, EMPTY_ARCHIVE)
    with pytest.raises(
        ClusterError, match="CUDA_VISIBLE_DEVICES is '3' on this machine, expected 2 devices, as H100:2 has"
    ):
        provider.create(code, lambda _: None, lambda: None)
    assert not (home / "clusters" / "gpus").exists()
